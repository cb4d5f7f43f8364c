module example/backend

go 1.26.0

require (
	github.com/stretchr/testify v1.12.1
	octet v0.0.0
)

require (
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/sys v0.49.0 // indirect
)

replace octet => ../..
