//go:build gaudi && !(cgo && linux)

package gaudi

// howToBuild says what the build lacked. It had the tag, but the go command silently
// disables cgo without a C compiler.
const howToBuild = "it was built with -tags gaudi but without cgo: build it with make build TAGS=gaudi, with a C compiler"
