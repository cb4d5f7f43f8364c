//go:build cuda && !(cgo && linux)

package cuda

// howToBuild is what the build lacked, which had the tag: the go command turns cgo
// off without a word where it finds no C compiler.
const howToBuild = "it was built with -tags cuda but without cgo: build it with make build TAGS=cuda, with a C compiler"
