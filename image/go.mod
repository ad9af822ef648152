module tidemill.dev/image

go 1.26.0

require tidemill.dev v0.0.0

require (
	github.com/ebitengine/purego v0.11.3 // indirect
	github.com/google/go-containerregistry v0.22.1
	github.com/klauspost/compress v1.20.3 // indirect
	github.com/opencontainers/go-digest v1.0.0 // indirect
	github.com/opencontainers/image-spec v1.1.1 // indirect
)

replace tidemill.dev => ../
