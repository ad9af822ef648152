package config

import (
	"fmt"
	"log/slog"
)

// redacted is every printed form of a secret.
const redacted = "[secret]"

// Secret is a text that must not be printed. The text stands behind a function,
// so that fmt, which prints unexported fields of other structs without asking
// their methods, has nothing to show but an address.
type Secret struct{ text func() string }

// NewSecret guards a text.
func NewSecret(text string) Secret { return Secret{text: func() string { return text }} }

// Reveal gives the text, for the one call that needs it.
func (s Secret) Reveal() string {
	if s.text == nil {
		return ""
	}
	return s.text()
}

// IsZero reports whether there is no text.
func (s Secret) IsZero() bool { return s.Reveal() == "" }

// Format prints every verb as [secret].
func (Secret) Format(f fmt.State, _ rune) { fmt.Fprint(f, redacted) }

// String is [secret].
func (Secret) String() string { return redacted }

// MarshalText makes JSON, YAML and XML hold [secret].
func (Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// LogValue logs [secret].
func (Secret) LogValue() slog.Value { return slog.StringValue(redacted) }
