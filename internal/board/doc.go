// Package board serves pages about the runs in a folder while they train: a list that sorts
// and filters, and a report of any of them. It reads the folder, writes nothing, and answers
// requests for this machine only, so that a web page from elsewhere cannot read runs through
// the reader's browser.
package board
