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

	"go.yaml.in/yaml/v3"

	"tidemill.dev"
)

const maxFiles = 200

// Parse parses one file's bytes. Problems show the file under the given name. The error is an
// *Error.
func Parse(name string, data []byte) (*Config, error) {
	return parse(Place{}, source{name: name, data: data})
}

// Load reads a file, or every *.yaml and *.yml file of a folder; the files of a folder together
// are one config. If the config is wrong, the error is an *Error. If a file cannot be read, it
// is another error.
func Load(path string) (*Config, error) {
	sources, err := readSources(path)
	if err != nil {
		return nil, fmt.Errorf("read config: %w", err)
	}
	return parse(Place{}, sources...)
}

// Reader loads the same path again and again. It parses only if a file has changed, because
// parsing a config of thousands of triggers takes most of a second.
type Reader struct {
	path    string
	place   Place
	sources []source // files as of the last parse
	config  *Config
	err     error
}

// NewReader returns a Reader that has read nothing yet. The config that it reads must fit the
// place.
func NewReader(path string, place Place) *Reader { return &Reader{path: path, place: place} }

// Load returns the same result as the function Load. If no file has changed, it returns the
// same Config as before. It is not safe for concurrent use.
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

// readFolder reads the files of a folder in the order of their names. Kubernetes changes all
// files of a mounted ConfigMap at once by swapping the link ..data. The link is resolved once,
// so that all files come from the same change.
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

// isConfigFile skips files whose names begin with a dot, which editors and Kubernetes create.
func isConfigFile(name string) bool {
	ext := filepath.Ext(name)
	return !strings.HasPrefix(name, ".") && (ext == ".yaml" || ext == ".yml")
}

// readRegular refuses anything that is not a regular file. A folder may contain one by
// accident, and reading it would hang or fail with an obscure error.
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

// readSource reads a little more than the limit, so that the check of a file's size reports a
// file that is too large together with the other problems.
func readSource(name, path string) (source, error) {
	f, err := os.Open(path)
	if err != nil {
		return source{}, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	return source{name: name, data: data}, err
}

// Place is the environment of a config. In the zero Place, everything may be named.
type Place struct {
	Namespace string   // Kubernetes namespace of the install; empty if there is none or it is not known
	Withheld  Withheld // objects that no run gets
}

// Withheld are the install's own objects of Kubernetes. No run gets them, even if its recipe names
// them, because a person who may write recipes need not be allowed to read the install's secrets.
type Withheld []string

const (
	secretKind = "secret/"
	claimKind  = "claim/"
)

// ParseWithheld parses a list of secret/NAME and claim/NAME, separated by commas. A * at the
// end of a name matches any rest.
func ParseWithheld(text string) (Withheld, error) {
	var all Withheld
	for one := range strings.SplitSeq(text, ",") {
		if one = strings.TrimSpace(one); one == "" {
			continue
		}
		_, name, _ := strings.Cut(one, "/")
		known := strings.HasPrefix(one, secretKind) || strings.HasPrefix(one, claimKind)
		if begin := strings.TrimSuffix(name, "*"); !known || name == "" || strings.ContainsAny(begin, "*/ ") {
			return nil, fmt.Errorf("%s is not an object that can be withheld from runs; write secret/NAME or claim/NAME, with commas between; a * at the end matches any rest", show(one))
		}
		all = append(all, one)
	}
	return all, nil
}

// Secret reports whether runs must not get a Secret of this name.
func (w Withheld) Secret(name string) bool { return w.has(secretKind + name) }

// Claim reports whether runs must not get a PersistentVolumeClaim of this name.
func (w Withheld) Claim(name string) bool { return w.has(claimKind + name) }

func (w Withheld) has(object string) bool {
	if strings.HasSuffix(object, "/") {
		return false // the name is empty
	}
	for _, one := range w {
		begin, any := strings.CutSuffix(one, "*")
		if object == one || any && strings.HasPrefix(object, begin) {
			return true
		}
	}
	return false
}

// Find describes the first withheld object that a run would get; empty if there is none. Pull
// secrets do not count: only the kubelet reads them, no container does.
func (w Withheld) Find(secrets map[string]string, in tidemill.Inside) string {
	for _, ref := range secrets {
		if name, _, _ := strings.Cut(ref, "/"); w.Secret(name) {
			return "the Secret " + name
		}
	}
	for _, v := range in.Volumes {
		switch {
		case w.Secret(v.Secret):
			return "the Secret " + v.Secret
		case w.Claim(v.Claim):
			return "the PersistentVolumeClaim " + v.Claim
		}
	}
	return ""
}

// reservedByInstall follows the name of an object that no recipe may name.
const reservedByInstall = "belongs to the install, and runs cannot get it; copy what the run needs into a separate one"

// checkRun reports the objects that the place withholds from runs.
func (p Place) checkRun(run value) {
	if len(p.Withheld) == 0 {
		return
	}
	for _, one := range run.valueOf("secrets").mappingValues() {
		if name, _, _ := strings.Cut(one.node.Value, "/"); p.Withheld.Secret(name) {
			one.problem("the Secret %s %s", show(name), reservedByInstall)
		}
	}
	for _, v := range run.valueOf("volumes").listValues() {
		if name := v.valueOf("secret"); name.node != nil && p.Withheld.Secret(name.node.Value) {
			name.problem("the Secret %s %s", show(name.node.Value), reservedByInstall)
		}
		if name := v.valueOf("claim"); name.node != nil && p.Withheld.Claim(name.node.Value) {
			name.problem("the PersistentVolumeClaim %s %s", show(name.node.Value), reservedByInstall)
		}
	}
}

// checkService reports a Knative Service in a namespace that the install cannot read.
func (p Place) checkService(v value) {
	if v.node == nil || p.Namespace == "" {
		return
	}
	namespace, name, both := strings.Cut(v.node.Value, "/")
	if !both || namespace == p.Namespace {
		return
	}
	v.problem("%s is in another namespace; this install is in %s and cannot see others; write its url instead, such as http://%s.%s.svc.cluster.local", show(v.node.Value), p.Namespace, name, namespace)
}

// listValues returns the values of a list; none if the value is not a list, which has been reported.
func (v value) listValues() (all []value) {
	if v.node != nil && v.node.Kind == yaml.SequenceNode {
		all = v.items()
	}
	return all
}
