// Package browser tests the pages of octet report and octet board in Chromium. It is a module
// of its own, so that Octet does not need its dependencies. Its test skips, and says so, where
// there is no chromium.
package browser
