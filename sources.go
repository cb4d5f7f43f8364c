package main

import "embed"

// sources is what octet trains on where there is no Go installation and
// nobody named other data: its own source.
//
//go:embed *.go backend checkpoint data fp8 infer internal nn recipe safetensors train
var sources embed.FS
