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

// Place is what a config cannot know of where it applies. The zero Place is one
// where everything may be named.
type Place struct {
	Namespace string   // of Kubernetes, which the install lies in; empty is none, or not known
	Withheld  Withheld // from runs
}

// Withheld are objects of Kubernetes that no run is given, though its recipe
// names them: those of the install itself. Whoever may write recipes need not be
// one who may read what the install is run with.
type Withheld []string

const (
	secretKind = "secret/"
	claimKind  = "claim/"
)

// ParseWithheld reads secret/NAME and claim/NAME, with commas between. A * at the
// end of a name stands for any rest.
func ParseWithheld(text string) (Withheld, error) {
	var all Withheld
	for one := range strings.SplitSeq(text, ",") {
		if one = strings.TrimSpace(one); one == "" {
			continue
		}
		_, name, _ := strings.Cut(one, "/")
		known := strings.HasPrefix(one, secretKind) || strings.HasPrefix(one, claimKind)
		if begin := strings.TrimSuffix(name, "*"); !known || name == "" || strings.ContainsAny(begin, "*/ ") {
			return nil, fmt.Errorf("%s names nothing that could be withheld from runs; write secret/NAME or claim/NAME, with commas between; a * at the end stands for any rest", show(one))
		}
		all = append(all, one)
	}
	return all, nil
}

// Secret reports whether no run is given a Secret of this name.
func (w Withheld) Secret(name string) bool { return w.has(secretKind + name) }

// Claim reports whether no run is given a PersistentVolumeClaim of this name.
func (w Withheld) Claim(name string) bool { return w.has(claimKind + name) }

func (w Withheld) has(object string) bool {
	if strings.HasSuffix(object, "/") {
		return false // it names none
	}
	for _, one := range w {
		begin, any := strings.CutSuffix(one, "*")
		if object == one || any && strings.HasPrefix(object, begin) {
			return true
		}
	}
	return false
}

// Find is what of all this a run would be given, in words; empty is nothing. The
// pull secrets are not looked at: they are the kubelet's, and no container sees
// them.
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

// ownAlone is behind what no recipe may name.
const ownAlone = "is the install's own, and no run is given it; copy what the run needs into one of its own"

// checkRun finds what the place withholds from runs.
func (p Place) checkRun(run value) {
	if len(p.Withheld) == 0 {
		return
	}
	for _, one := range run.at1("secrets").quiet() {
		if name, _, _ := strings.Cut(one.node.Value, "/"); p.Withheld.Secret(name) {
			one.problem("the Secret %s %s", show(name), ownAlone)
		}
	}
	for _, v := range run.at1("volumes").each() {
		if name := v.at1("secret"); name.node != nil && p.Withheld.Secret(name.node.Value) {
			name.problem("the Secret %s %s", show(name.node.Value), ownAlone)
		}
		if name := v.at1("claim"); name.node != nil && p.Withheld.Claim(name.node.Value) {
			name.problem("the PersistentVolumeClaim %s %s", show(name.node.Value), ownAlone)
		}
	}
}

// checkService finds a Knative Service that the install cannot look for.
func (p Place) checkService(v value) {
	if v.node == nil || p.Namespace == "" {
		return
	}
	namespace, name, both := strings.Cut(v.node.Value, "/")
	if !both || namespace == p.Namespace {
		return
	}
	v.problem("%s lies in another namespace than this install, which is in %s and sees no other; write its url for it, such as http://%s.%s.svc.cluster.local", show(v.node.Value), p.Namespace, name, namespace)
}

// each are the values of a list; none if it is none, which has been reported.
func (v value) each() (all []value) {
	if v.node != nil && v.node.Kind == yaml.SequenceNode {
		all = v.items()
	}
	return all
}
