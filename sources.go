package main

import "embed"

// sources is octet's own source: the training data if there is no Go installation and
// the user names no other data.
//
//go:embed *.go backend checkpoint command data fp8 infer internal nn recipe run safetensors train
var sources embed.FS
