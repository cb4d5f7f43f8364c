// Package direct calls functions of a C library by their names, without
// declarations: for tests that break a library's rules, which a proper binding would
// not let them do. It is built with -tags gaudi and cgo on Linux only.
package direct
