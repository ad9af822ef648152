package pick

import (
	"mime"
	"strings"
	"unicode/utf8"

	"tidemill.dev/broker"
	"tidemill.dev/internal/infer/tensor"
)

// attribute reads a slot from an attribute.
func (r *reader) attribute(v *broker.View, index int) error {
	s := &r.plan.slots[index]
	said, there := lookUp(v, s.at.attribute)
	if !there {
		return s.fault("is not in the event")
	}
	return r.said(index, said)
}

// lookUp finds an attribute, or the record's key, which is what the broker makes
// it of where the event is on no stream yet.
func lookUp(v *broker.View, name string) (string, bool) {
	if said, there := v.Attribute(name); there || name != "key" {
		return said, there
	}
	if v.Key != nil {
		return asText(v.Key), true
	}
	if said, there := v.Attribute("partitionkey"); there {
		return said, true
	}
	return v.Subject, v.Subject != ""
}

// said reads a slot from text that is not in quotes: as it stands, or as the
// number that it says.
func (r *reader) said(index int, said string) error {
	s, t := &r.plan.slots[index], &r.in[index]
	r.begin(s, t)
	if !alone(t) || !r.literal(t, said) {
		return s.fault("is %s", quoted(said))
	}
	return nil
}

func (r *reader) literal(t *tensor.Tensor, said string) bool {
	if t.Type != tensor.String {
		return value(asBytes(said), 0, t, r.at) == len(said)
	}
	t.Strings[r.at] = said
	return utf8.ValidString(said)
}

// opaque reads an event whose data is not JSON: whole, as a text.
func (r *reader) opaque(v *broker.View) error {
	for i := range r.plan.slots {
		s := &r.plan.slots[i]
		if s.at.attribute != "" {
			continue
		}
		if v.Data == nil {
			return s.fault("is not there: the event has no data")
		}
		if len(s.at.steps) > 0 {
			return s.fault("is not there: the data is %s and not JSON; map data, which is all of it", quoted(v.DataContentType))
		}
		if err := r.said(i, asText(v.Data)); err != nil {
			return err
		}
	}
	return nil
}

// isJSON follows CloudEvents: */json and */*+json, and what does not say.
func isJSON(contentType string) bool {
	if contentType == "application/json" || contentType == "" {
		return true
	}
	media, _, err := mime.ParseMediaType(contentType)
	if err != nil {
		media, _, _ = strings.Cut(contentType, ";")
		media = strings.ToLower(strings.TrimSpace(media))
	}
	_, subtype, _ := strings.Cut(media, "/")
	return subtype == "json" || strings.HasSuffix(subtype, "+json")
}
