package oip

import (
	"net/http"
	"strconv"
	"strings"
)

// kind is what is asked for.
type kind int8

const (
	aboutServer kind = iota
	aboutLive
	aboutReady
	aboutModel
	aboutModelReady
	toInfer
)

// target is what a path asks for, and of which model.
type target struct {
	kind    kind
	model   string
	version int // 0 is the champion
}

func (t target) method() string {
	if t.kind == toInfer {
		return http.MethodPost
	}
	return http.MethodGet
}

const modelsPath = "/v2/models/"

// parsePath reads a path. A model's name has slashes, so that it is read from
// behind: what could be a verb or a version is one.
func parsePath(path string) (target, error) {
	switch strings.TrimSuffix(path, "/") {
	case "/v2":
		return target{kind: aboutServer}, nil
	case "/v2/health/live":
		return target{kind: aboutLive}, nil
	case "/v2/health/ready":
		return target{kind: aboutReady}, nil
	}
	name, ok := strings.CutPrefix(path, modelsPath)
	if !ok {
		return target{}, faultf(http.StatusNotFound, "there is nothing at %.100q: ask /v2, /v2/health/live, /v2/health/ready or /v2/models/NAME[/versions/NUMBER][/ready|/infer]", path)
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
		return t, faultf(http.StatusNotFound, "%.40q is no version: a version is a number from 1", text)
	}
	t.model, t.version = t.model[:at], n
	return t, nil
}
