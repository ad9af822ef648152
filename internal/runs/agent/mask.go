package agent

import (
	"bytes"
	"encoding/json"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"tidemill.dev"
)

const (
	// leastMasked is the size of the shortest text that is masked. A shorter one, such as "true",
	// would mask words that are no secret.
	leastMasked = 6
	masked      = "***"

	maxSecretFile = 64 << 10
)

// masks are the texts that no log may show, by their first byte, the longest first.
type masks [256][][]byte

// newMasks returns the masks of the secrets; nil if there are none. A log consists of lines, so each
// line of a secret is a mask. A secret is also masked as it is written in URLs and in JSON.
func newMasks(secrets []string) *masks {
	all := map[string]bool{}
	for _, secret := range secrets {
		for line := range strings.SplitSeq(secret, "\n") {
			line = strings.TrimSpace(line)
			if len(line) < leastMasked {
				continue
			}
			quoted, _ := json.Marshal(line) // cannot fail for a text
			query := url.QueryEscape(line)
			for _, form := range []string{line, query, strings.ReplaceAll(query, "+", "%20"), string(quoted[1 : len(quoted)-1])} {
				all[form] = true
			}
		}
	}
	if len(all) == 0 {
		return nil
	}
	m := &masks{}
	for text := range all {
		m[text[0]] = append(m[text[0]], []byte(text))
	}
	for _, some := range m {
		slices.SortFunc(some, func(a, b []byte) int { return len(b) - len(a) })
	}
	return m
}

// at returns the length of the mask with which the text begins; 0 for none. It returns unsure if the
// text may be the beginning of a longer mask.
func (m *masks) at(text []byte) (n int, unsure bool) {
	for _, mask := range m[text[0]] {
		switch {
		case bytes.HasPrefix(text, mask):
			return len(mask), false
		case bytes.HasPrefix(mask, text):
			return 0, true
		}
	}
	return 0, false
}

// masker masks the secrets in a stream, also those that are split over several writes.
type masker struct {
	masks *masks // nil masks nothing
	held  []byte // end of the stream that may be the beginning of a secret
	out   []byte // memory for the next result
}

// next returns what is certain of the stream so far. The text is valid until the next call.
func (m *masker) next(data []byte) []byte {
	if m.masks == nil {
		return data
	}
	text, out, plain := append(m.held, data...), m.out[:0], 0
	i := 0
	for i < len(text) {
		if m.masks[text[i]] == nil { // the usual case
			i++
			continue
		}
		n, unsure := m.masks.at(text[i:])
		if unsure {
			break
		}
		if n == 0 {
			i++
			continue
		}
		out = append(append(out, text[plain:i]...), masked...)
		i += n
		plain = i
	}
	m.out = append(out, text[plain:i]...)
	m.held = append(m.held[:0], text[i:]...)
	return m.out
}

// rest returns the end of the stream. The beginning of a secret is masked too if it is long enough,
// because a command may be killed while it writes.
func (m *masker) rest() []byte {
	if len(m.held) >= leastMasked {
		return []byte(masked)
	}
	return m.held
}

// masksOf returns the masks for the log: the token, and the secrets that the command is given as
// variables or files. A file that we cannot read, the command cannot read either.
func (a *attempt) masksOf(plan *tidemill.Plan) *masks {
	secrets := []string{a.o.Token}
	for variable := range plan.Secrets {
		if a.o.Inside {
			secrets = append(secrets, os.Getenv(variable))
		}
		for _, pair := range a.equipment.Env {
			if name, secret, _ := strings.Cut(pair, "="); name == variable {
				secrets = append(secrets, secret)
			}
		}
	}
	for _, v := range plan.Inside.Volumes {
		if a.o.Inside && v.Secret != "" {
			secrets = append(secrets, secretFiles(v.At)...)
		}
	}
	return newMasks(secrets)
}

// secretFiles returns the contents of the files of a mounted Secret.
func secretFiles(dir string) (all []string) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "..") { // Kubernetes keeps the versions of the Secret there
			continue
		}
		f, err := os.Open(filepath.Join(dir, e.Name()))
		if err != nil {
			continue
		}
		text, _ := io.ReadAll(io.LimitReader(f, maxSecretFile))
		_ = f.Close()
		all = append(all, string(text))
	}
	return all
}
