package letters

import (
	"encoding/base64"
	"net/url"
	"strconv"

	"tidemill.dev/broker"
)

// The extensions that Knative gives to what it could not deliver, so that
// whatever works on its dead letters works on ours.
const (
	knativeDest = "knativeerrordest"
	knativeCode = "knativeerrorcode"
	knativeData = "knativeerrordata"
)

// knativeAnswer is how much of an answer becomes Knative's 1,024 letters: it
// writes base64, in which an answer has neither control characters nor an
// encoding of its own.
const knativeAnswer = 1024 / 4 * 3

func knative(d Details) (all []broker.Attribute) {
	if dest := WithoutSecrets(d.Destination); dest != "" {
		all = append(all, broker.Attribute{Name: knativeDest, Value: dest})
	}
	if len(d.Attempts) == 0 {
		return all
	}
	last := d.Attempts[len(d.Attempts)-1]
	if last.Status != 0 {
		all = append(all, broker.Attribute{Name: knativeCode, Value: strconv.Itoa(last.Status)})
	}
	if answer := last.Answer; answer != "" {
		answer = answer[:min(len(answer), knativeAnswer)]
		all = append(all, broker.Attribute{Name: knativeData, Value: base64.StdEncoding.EncodeToString([]byte(answer))})
	}
	return all
}

// WithoutSecrets is a URL less what may hold a password or a token.
func WithoutSecrets(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return ""
	}
	u.User, u.RawQuery, u.ForceQuery, u.Fragment, u.RawFragment = nil, "", false, "", ""
	return u.String()
}
