// Package report writes a page about training runs: one HTML file that needs no other file,
// no script and no network.
//
// The page compares groups of runs that differ in their seed: losses with the range over
// seeds, differences to a baseline on the same batches, the casts of each layer over time,
// throughput, configurations, warnings. Every chart has a table of its numbers, and the
// colours follow the reader's colour scheme.
package report
