package rest

import (
	"net/http"
	"strconv"
	"strings"

	"tidemill.dev/internal/scoring/oip"
)

// Within reports whether a path is answered here.
func Within(path string) bool { return path == "/v2" || strings.HasPrefix(path, "/v2/") }

// Paths says which paths there are.
const Paths = "ask /v2, /v2/health/live, /v2/health/ready, /v2/models/NAME[/versions/NUMBER][/ready|/infer], /v2/repository/index or /v2/repository/models/NAME/load|unload"

// kind is the kind of resource that a path requests.
type kind int8

const (
	aboutServer kind = iota
	aboutLive
	aboutReady
	aboutModel
	aboutModelReady
	toInfer
	toIndex
	toLoad
	toUnload
)

// target is a path's resource and model.
type target struct {
	kind    kind
	model   string
	version int // 0 means the champion
}

func (t target) method() string {
	if t.kind >= toInfer {
		return http.MethodPost
	}
	return http.MethodGet
}

const (
	modelsPath     = "/v2/models/"
	repositoryPath = "/v2/repository/models/"
)

// parsePath parses a path. A model's name may have slashes, so the path is read from
// its end: a segment that can be a verb or a version counts as a verb or a version.
func parsePath(path string) (target, error) {
	switch strings.TrimSuffix(path, "/") {
	case "/v2":
		return target{kind: aboutServer}, nil
	case "/v2/health/live":
		return target{kind: aboutLive}, nil
	case "/v2/health/ready":
		return target{kind: aboutReady}, nil
	case "/v2/repository/index":
		return target{kind: toIndex}, nil
	}
	if name, ok := strings.CutPrefix(path, repositoryPath); ok {
		if model, ok := strings.CutSuffix(name, "/unload"); ok {
			return target{kind: toUnload, model: model}, nil
		}
		if model, ok := strings.CutSuffix(name, "/load"); ok {
			return target{kind: toLoad, model: model}, nil
		}
	}
	name, ok := strings.CutPrefix(path, modelsPath)
	if !ok {
		return target{}, oip.Errorf(oip.NotFound, "there is nothing at %.100q: %s", path, Paths)
	}
	t := target{kind: aboutModel, model: name}
	if rest, ok := strings.CutSuffix(name, "/ready"); ok {
		t.kind, t.model = aboutModelReady, rest
	} else if rest, ok := strings.CutSuffix(name, "/infer"); ok {
		t.kind, t.model = toInfer, rest
	}
	return t.cutVersion()
}

func (t target) cutVersion() (target, error) {
	const word = "/versions/"
	at := strings.LastIndex(t.model, word)
	if at < 0 || strings.Contains(t.model[at+len(word):], "/") {
		return t, nil
	}
	text := t.model[at+len(word):]
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || strconv.Itoa(n) != text {
		return t, oip.Errorf(oip.NotFound, "%.40q is not a version: a version is a number from 1", text)
	}
	t.model, t.version = t.model[:at], n
	return t, nil
}
