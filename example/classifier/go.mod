module example/classifier

go 1.26.0

require (
	github.com/stretchr/testify v1.12.1
	octet v0.0.0
)

require (
	github.com/BurntSushi/toml v1.6.0 // indirect
	github.com/gofrs/flock v0.13.1 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/sys v0.49.0 // indirect
	golang.org/x/text v0.28.0 // indirect
	google.golang.org/protobuf v1.36.12 // indirect
)

replace octet => ../..
