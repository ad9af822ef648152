package config

import (
	"maps"
	"slices"
	"strings"
)

func (c *Credentials) fields() []field {
	return []field{
		{"bearerFile", readFile(&c.BearerFile)},
		{"basicFile", readFile(&c.BasicFile)},
		{"header", c.readHeader},
		{"headerFile", readFile(&c.HeaderFile)},
		{"caFile", readFile(&c.CAFile)},
		{"certFile", readFile(&c.CertFile)},
		{"keyFile", readFile(&c.KeyFile)},
	}
}

// Files are those that must be there for a delivery to be tried, by the key
// that names each.
func (c Credentials) Files() map[string]string {
	files := map[string]string{"bearerFile": c.BearerFile, "basicFile": c.BasicFile, "headerFile": c.HeaderFile,
		"caFile": c.CAFile, "certFile": c.CertFile, "keyFile": c.KeyFile}
	maps.DeleteFunc(files, func(_, file string) bool { return file == "" })
	return files
}

// readFile reads the name of a file. Whether there is one is not asked: the
// config may be read where the file is not.
func readFile(to *string) func(value) {
	return func(v value) {
		if text, ok := v.text(); ok {
			*to = text
		}
	}
}

// neverSent are the headers that say how a request is made, so that one from
// the file would break it; those of the connection are RFC 9110's and the ones
// that clients take for such.
var neverSent = []string{"connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection",
	"te", "trailer", "transfer-encoding", "upgrade",
	"host", "content-type", "content-length", "content-encoding", "expect", "prefer", "user-agent", "accept-encoding", "traceparent", "tracestate"}

func (c *Credentials) readHeader(v value) {
	text, ok := v.text()
	if !ok {
		return
	}
	lower := strings.ToLower(text)
	switch {
	case len(text) > maxHeader || strings.Trim(lower, headerLetters) != "":
		v.problem("%s is no header's name; write one such as X-Api-Key", show(text))
	case strings.HasPrefix(lower, "ce-"):
		v.problem("%s is an attribute of the event; headers that begin with ce- are the event's own", show(text))
	case slices.Contains(neverSent, lower):
		v.problem("%s is a header of the request itself, which Tidemill writes; name the one that the subscriber knows you by, such as X-Api-Key", show(text))
	default:
		c.Header = text
	}
}

const (
	maxHeader     = 100
	headerLetters = "abcdefghijklmnopqrstuvwxyz0123456789!#$%&'*+-.^_`|~" // RFC 9110's tokens
)

// who are the keys that say who we are to a subscriber.
var who = []string{"bearerFile", "basicFile", "header"}

// check holds a target's credentials against each other.
func (c *Credentials) check(v value, given map[string]bool) {
	if given["function"] && !given["url"] && !given["service"] {
		for _, f := range c.fields() {
			if given[f.key] {
				v.child(f.key, v.at(f.key)).problem("a function of Tidemill's own asks for no credentials; remove the key")
			}
		}
		return
	}
	var named []string
	for _, key := range who {
		if given[key] {
			named = append(named, key)
		}
	}
	if len(named) > 1 {
		v.problem("has %s; a subscriber is told one of them, keep one", strings.Join(named, " and "))
	}
	for _, pair := range [][2]string{{"header", "headerFile"}, {"headerFile", "header"}, {"certFile", "keyFile"}, {"keyFile", "certFile"}} {
		if given[pair[0]] {
			v.require(v.at(pair[0]), given, pair[1], "it goes with "+pair[0])
		}
	}
}
