package cehttp

import (
	"net/http"
	"strings"

	"tidemill.dev/broker"
)

// coreHeaders is how many headers an event has besides its extensions, at most.
const coreHeaders = 8

// WriteBinary writes an event in binary mode: it sets the headers, those of an
// event that h had before are gone, and returns the body, which is the event's
// data. It checks nothing: see [broker.View.Validate]. The event's record key
// and foreign headers stay behind; they are Kafka's.
func WriteBinary(h http.Header, v *broker.View) (body []byte) {
	clearEvent(h)
	// Without this a server's response would get a content type by guessing.
	h[headerContentType] = nil
	w := headerWriter{h: h, values: make([]string, 0, coreHeaders+len(v.Extensions))}
	w.set(headerSpecVersion, specVersion)
	w.set("Ce-Id", encode(v.ID))
	w.set("Ce-Source", encode(v.Source))
	w.set("Ce-Type", encode(v.Type))
	w.setOptional("Ce-Subject", encode(v.Subject))
	w.setOptional("Ce-Time", encode(v.Time))
	w.setOptional("Ce-Dataschema", encode(v.DataSchema))
	w.setOptional(headerContentType, v.DataContentType)
	for i := range v.Extensions {
		w.set(headerOf(v.Extensions[i].Name), encode(v.Extensions[i].Value))
	}
	return v.Data
}

// headerWriter gives all headers one array for their values.
type headerWriter struct {
	h      http.Header
	values []string
}

func (w *headerWriter) set(key, value string) {
	n := len(w.values)
	w.values = append(w.values, value)
	w.h[key] = w.values[n : n+1 : n+1]
}

func (w *headerWriter) setOptional(key, value string) {
	if value != "" {
		w.set(key, value)
	}
}

// headerOf is the header of an attribute in net/http's canonical form, without
// its walk over every letter: a name has no hyphen and no upper case.
func headerOf(name string) string {
	if name == "" || name[0] < 'a' || name[0] > 'z' {
		return headerPrefix + name
	}
	return headerPrefix + string(rune(name[0]-'a'+'A')) + name[1:]
}

// clearEvent takes the attributes of an event away that h had before, so that
// none of them joins the next one.
func clearEvent(h http.Header) {
	for key := range h {
		if strings.HasPrefix(key, headerPrefix) {
			delete(h, key)
		}
	}
}
