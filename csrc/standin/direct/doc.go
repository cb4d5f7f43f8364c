// Package direct calls functions of a C library by name, without declarations, so that
// tests can break a library's rules. It is built with -tags gaudi and cgo on Linux only.
package direct
