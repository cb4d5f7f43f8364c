//go:build cuda && !(cgo && linux)

package cuda

// howToBuild is the rest of the ErrNotBuilt message: the go command disables cgo silently
// when it finds no C compiler.
const howToBuild = "it was built with -tags cuda but without cgo: build it with make build TAGS=cuda, with a C compiler"
