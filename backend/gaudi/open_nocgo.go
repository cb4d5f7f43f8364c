//go:build gaudi && !(cgo && linux)

package gaudi

// howToBuild is what the build lacked, which had the tag: the go command turns cgo
// off without a word where it finds no C compiler.
const howToBuild = "it was built with -tags gaudi but without cgo: build it with make build TAGS=gaudi, with a C compiler"
