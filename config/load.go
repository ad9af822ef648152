package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const maxFiles = 200

// Parse reads one file's bytes. The name is what problems call the file. Its
// error is an *Error.
func Parse(name string, data []byte) (*Config, error) {
	return parse(Place{}, source{name: name, data: data})
}

// Load reads a file, or every *.yaml and *.yml file of a folder, which
// together are one config. What is wrong with the config is an *Error; a file
// that cannot be read is another.
func Load(path string) (*Config, error) {
	sources, err := readSources(path)
	if err != nil {
		return nil, fmt.Errorf("read config: %w", err)
	}
	return parse(Place{}, sources...)
}

// Reader reads what Load does, again and again. It parses only what has
// changed: a config of thousands of triggers costs most of a second.
type Reader struct {
	path    string
	place   Place
	sources []source // as they were parsed
	config  *Config
	err     error
}

// NewReader reads nothing yet. What it will read has to fit the place.
func NewReader(path string, place Place) *Reader { return &Reader{path: path, place: place} }

// Load gives the config as Load does, and the same one as before if no file has
// changed. It is not safe for concurrent use.
func (r *Reader) Load() (*Config, error) {
	sources, err := readSources(r.path)
	if err != nil {
		return nil, fmt.Errorf("read config: %w", err)
	}
	if r.config == nil && r.err == nil || !slices.EqualFunc(r.sources, sources, sameSource) {
		r.sources = sources
		r.config, r.err = parse(r.place, sources...)
	}
	return r.config, r.err
}

func sameSource(a, b source) bool { return a.name == b.name && bytes.Equal(a.data, b.data) }

func readSources(path string) ([]source, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s does not exist; name a YAML file, or a folder of them", path)
	}
	if err != nil {
		return nil, err
	}
	if info.IsDir() {
		return readFolder(path)
	}
	s, err := readSource(path, path)
	return []source{s}, err
}

// readFolder reads the files of a folder in the order of their names.
// Kubernetes changes all files of a mounted ConfigMap at once by swapping the
// link ..data; reading behind that link keeps one change whole.
func readFolder(folder string) ([]source, error) {
	behind := folder
	if data, err := filepath.EvalSymlinks(filepath.Join(folder, "..data")); err == nil {
		behind = data
	}
	entries, err := os.ReadDir(behind)
	if err != nil {
		return nil, err
	}
	var sources []source
	for _, e := range entries {
		if !isConfigFile(e.Name()) {
			continue
		}
		if len(sources) == maxFiles {
			return nil, fmt.Errorf("%s has more than %d YAML files; is it a folder of Tidemill configs?", folder, maxFiles)
		}
		s, err := readRegular(filepath.Join(folder, e.Name()), filepath.Join(behind, e.Name()))
		if err != nil {
			return nil, err
		}
		sources = append(sources, s)
	}
	if len(sources) == 0 {
		return nil, fmt.Errorf("%s has no *.yaml or *.yml file; name a folder that has, or a file", folder)
	}
	return sources, nil
}

// isConfigFile leaves out what editors and Kubernetes hide behind a dot.
func isConfigFile(name string) bool {
	ext := filepath.Ext(name)
	return !strings.HasPrefix(name, ".") && (ext == ".yaml" || ext == ".yml")
}

// readRegular refuses what a folder may hold by accident and reading would
// hang on or fail at obscurely.
func readRegular(name, path string) (source, error) {
	info, err := os.Stat(path)
	if err != nil {
		return source{}, err
	}
	if !info.Mode().IsRegular() {
		return source{}, fmt.Errorf("%s is not a file; rename it or move it out of the folder", name)
	}
	return readSource(name, path)
}

// readSource reads a little more than a file may have, so that one too large is
// refused where all problems are.
func readSource(name, path string) (source, error) {
	f, err := os.Open(path)
	if err != nil {
		return source{}, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	return source{name: name, data: data}, err
}
