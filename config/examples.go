package config

import (
	"embed"
	"io/fs"
)

//go:embed examples/*.yaml
var embedded embed.FS

// Examples are the example files of this package, which its tests parse.
func Examples() fs.FS {
	sub, err := fs.Sub(embedded, "examples")
	if err != nil {
		return embedded // never: the folder's name is a valid path
	}
	return sub
}
