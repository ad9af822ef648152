package config

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

const hidden = "hunter2"

// holder contains secrets in places where fmt does not call their methods.
type holder struct {
	Public  Secret
	private Secret
	Pointer *Secret
	list    []Secret
	byName  map[string]Secret
}

func secrets() []any {
	s := NewSecret(hidden)
	h := holder{Public: s, private: s, Pointer: &s, list: []Secret{s}, byName: map[string]Secret{"a": s}}
	return []any{s, &s, []Secret{s}, map[string]Secret{"a": s}, h, &h, []any{s}}
}

func TestSecretIsNeverPrinted(t *testing.T) {
	verbs := "vTtbcdoOqxXUeEfFgGspw"
	for _, s := range secrets() {
		for _, verb := range verbs {
			for _, flags := range []string{"", "+", "#", " ", "0", "-20", "20.3", "+#"} {
				format := "%" + flags + string(verb)
				leaks(t, format, fmt.Sprintf(format, s))
			}
		}
		leaks(t, "Errorf", fmt.Errorf("login: %w", fmt.Errorf("%v", s)).Error())
		leaks(t, "Sprint", fmt.Sprint(s))
	}
}

func leaks(t *testing.T, how, text string) {
	t.Helper()
	if strings.Contains(text, hidden) || strings.Contains(text, fmt.Sprintf("%x", hidden)) {
		t.Errorf("%s prints the secret: %s", how, text)
	}
}

func TestSecretPrintsAsSecret(t *testing.T) {
	s := NewSecret(hidden)
	for _, format := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		if got := fmt.Sprintf(format, s); got != redacted {
			t.Errorf("%s prints %s", format, got)
		}
	}
	if s.String() != redacted || s.Reveal() != hidden || s.IsZero() {
		t.Errorf("String %s, IsZero %t", s.String(), s.IsZero())
	}
	var none Secret
	if none.Reveal() != "" || !none.IsZero() || fmt.Sprint(none) != redacted {
		t.Errorf("the zero secret is %v", none)
	}
}

func TestSecretIsNeverMarshalled(t *testing.T) {
	type login struct{ Password Secret }
	v := login{NewSecret(hidden)}
	for name, marshal := range map[string]func(any) ([]byte, error){
		"json": json.Marshal, "yaml": yaml.Marshal, "xml": xml.Marshal,
	} {
		text, err := marshal(v)
		if err != nil || !strings.Contains(string(text), redacted) {
			t.Errorf("%s: %s, %v", name, text, err)
		}
		leaks(t, name, string(text))
	}
}

func TestSecretIsNeverLogged(t *testing.T) {
	for name, handler := range map[string]func(*bytes.Buffer) slog.Handler{
		"text": func(b *bytes.Buffer) slog.Handler { return slog.NewTextHandler(b, nil) },
		"json": func(b *bytes.Buffer) slog.Handler { return slog.NewJSONHandler(b, nil) },
	} {
		var out bytes.Buffer
		log := slog.New(handler(&out))
		for _, s := range secrets() {
			log.Info("login", "password", s, slog.Group("to", "p", s), "err", errors.Join(fmt.Errorf("%+v", s)))
		}
		leaks(t, name, out.String())
		if !strings.Contains(out.String(), redacted) {
			t.Errorf("%s: %s", name, out.String())
		}
	}
}
