package score

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"tidemill.dev/broker"
	"tidemill.dev/config"
)

// keyPlace is where events say what key they belong to.
type keyPlace struct {
	place string   // as it is configured
	path  []string // within the data; nil for an attribute
	need  bool     // the model's name says it, so that none can be found without
}

func newKeyPlace(place, model string) keyPlace {
	if place == "" {
		place = config.KeySubject
	}
	k := keyPlace{place: place, need: strings.Contains(model, "{key}")}
	if path, in := strings.CutPrefix(place, config.KeyData); in {
		k.path = strings.Split(path, ".")
	}
	return k
}

// of is an event's key, which may point into it.
func (k *keyPlace) of(v *broker.View) (string, error) {
	key := k.find(v)
	if key == "" && !k.need {
		return "", nil
	}
	if key == "" {
		return "", fmt.Errorf("it has no key: there is no text at %s; publish it with one, or change `key` of the scorer", k.place)
	}
	if err := checkKey(key); err != nil {
		return "", fmt.Errorf("what stands at %s %w", k.place, err)
	}
	return key, nil
}

func (k *keyPlace) find(v *broker.View) string {
	switch {
	case k.path != nil:
		return textAt(v.Data, k.path)
	case k.place == config.KeySubject:
		return v.Subject
	case k.place == config.KeyNone:
		return ""
	}
	key, _ := v.Attribute(k.place)
	return key
}

// maxKey is how long a key is at most, here as where models are made.
const maxKey = 256

// checkKey says why a text can be no key. One that cannot has no model either.
func checkKey(key string) error {
	if len(key) > maxKey {
		return fmt.Errorf("can be no key: it has %d bytes, a key may have %d", len(key), maxKey)
	}
	plain := true
	for i := range len(key) {
		plain = plain && key[i] >= ' ' && key[i] < 0x7f
	}
	if plain {
		return nil
	}
	return checkOddKey(key)
}

func checkOddKey(key string) error {
	if !utf8.ValidString(key) {
		return errors.New("can be no key: it is no UTF-8")
	}
	if strings.ContainsFunc(key, unicode.IsControl) {
		return errors.New("can be no key: it has a control character")
	}
	return nil
}
