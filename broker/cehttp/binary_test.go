package cehttp

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	"tidemill.dev/broker"
)

// testHeaders returns the required attributes and the given pairs of name and value.
func testHeaders(pairs ...string) http.Header {
	h := http.Header{}
	for i, pairs := 0, append([]string{"ce-specversion", "1.0", "ce-id", "1", "ce-source", "/s", "ce-type", "t"}, pairs...); i < len(pairs); i += 2 {
		h.Add(pairs[i], pairs[i+1])
	}
	return h
}

func without(h http.Header, name string) http.Header {
	h.Del(name)
	return h
}

func with(h http.Header, name, value string) http.Header {
	h.Set(name, value)
	return h
}

func TestReadBinaryRefuses(t *testing.T) {
	many := testHeaders()
	for i := range 300 {
		many.Set(fmt.Sprint("ce-x", i), "")
	}
	for name, c := range map[string]struct {
		h             http.Header
		attribute, is string
	}{
		"no event":           {http.Header{"Content-Type": {"application/json"}}, "specversion", "is missing: this is not a CloudEvent"},
		"no version":         {without(testHeaders(), "ce-specversion"), "specversion", "is missing"},
		"empty version":      {with(testHeaders(), "ce-specversion", ""), "specversion", "is missing"},
		"version 0.3":        {with(testHeaders(), "ce-specversion", "0.3"), "specversion", `is "0.3"; only 1.0 is supported`},
		"no id":              {without(testHeaders(), "ce-id"), "id", "is missing"},
		"no source":          {without(testHeaders(), "ce-source"), "source", "is missing"},
		"no type":            {without(testHeaders(), "ce-type"), "type", "is missing"},
		"blank id":           {with(testHeaders(), "ce-id", "%20"), "id", "is missing"},
		"id twice":           {testHeaders("ce-id", "2"), "id", "is given twice"},
		"version twice":      {testHeaders("ce-specversion", "1.0"), "specversion", "is given twice"},
		"extension twice":    {testHeaders("ce-x", "1", "CE-X", "1"), "x", "is given twice"},
		"content type twice": {testHeaders("content-type", "a/b", "content-type", "a/b"), "datacontenttype", "is given twice"},
		"data content type":  {testHeaders("ce-datacontenttype", "a/b"), "datacontenttype", "must not be the header ce-datacontenttype"},
		"content type":       {testHeaders("content-type", "json"), "datacontenttype", "is not a media type"},
		"source":             {with(testHeaders(), "ce-source", "/a b"), "source", "is no URI-reference"},
		"schema":             {testHeaders("ce-dataschema", "/relative"), "dataschema", "is not an absolute URI"},
		"time":               {testHeaders("ce-time", "2026-02-30T00:00:00Z"), "time", "is no RFC 3339 time"},
		"hyphen":             {testHeaders("ce-my-name", ""), "my-name", "characters other than a-z and 0-9"},
		"underscore":         {testHeaders("ce-my_name", ""), "my_name", "characters other than a-z and 0-9"},
		"no name":            {testHeaders("ce-", ""), "", "has no name"},
		"named data":         {testHeaders("ce-data", ""), "data", "reserved for the data itself"},
		"long name":          {testHeaders("ce-"+strings.Repeat("x", 200), ""), strings.Repeat("x", 40) + "…", "name longer than 128 characters"},
		"long value":         {testHeaders("ce-x", strings.Repeat("x", 64<<10+1)), "x", "longer than 65536 bytes"},
		"overlong UTF-8":     {testHeaders("ce-subject", "%C0%A0"), "subject", "is not valid UTF-8"},
		"overlong in source": {with(testHeaders(), "ce-source", "/%C0%A0"), "source", "is not valid UTF-8"},
		"half a rune":        {testHeaders("ce-subject", "%E2%82"), "subject", "is not valid UTF-8"},
		"surrogate":          {testHeaders("ce-subject", "%ED%A0%80"), "subject", "is not valid UTF-8"},
		"latin 1":            {testHeaders("ce-subject", "caf\xe9"), "subject", "is not valid UTF-8"},
		"control character":  {testHeaders("ce-subject", "a%0D%0Ab"), "subject", "has the control character U+000D"},
		"many":               {many, "", "event has more than 256 attributes"},
		"batch of one":       {testHeaders("content-type", "application/cloudevents-foo"), "", "only application/cloudevents+json"},
	} {
		t.Run(name, func(t *testing.T) {
			err := ReadBinary(c.h, nil, new(broker.View))
			if err == nil || !strings.Contains(err.Error(), c.is) || attributeOf(err) != c.attribute {
				t.Errorf("error %v about %q; want one with %q about %q", err, attributeOf(err), c.is, c.attribute)
			}
			if err != nil && len(err.Error()) > 300 {
				t.Errorf("error of %d bytes repeats hostile input", len(err.Error()))
			}
		})
	}
}

// attributeOf returns the attribute of an error through the interface that the gateway
// uses.
func attributeOf(err error) string {
	if e, ok := errors.AsType[interface {
		error
		Attribute() string
	}](err); ok {
		return e.Attribute()
	}
	return ""
}

func TestReadBinaryReads(t *testing.T) {
	plain := broker.View{ID: "1", Source: "/s", Type: "t"}
	for name, c := range map[string]struct {
		h    http.Header
		body string
		want func(*broker.View)
	}{
		"the least":      {testHeaders(), "", func(*broker.View) {}},
		"data":           {testHeaders(), "{}", func(v *broker.View) { v.Data = []byte("{}") }},
		"typed data":     {testHeaders("content-type", "text/plain; charset=latin1"), "\xff", func(v *broker.View) { v.DataContentType, v.Data = "text/plain; charset=latin1", []byte("\xff") }},
		"typed, no data": {testHeaders("content-type", "application/json"), "", func(v *broker.View) { v.DataContentType = "application/json" }},
		"core":           {testHeaders("ce-subject", "a%20%25", "CE-TIME", "2026-01-31T15:04:05Z", "ce-dataschema", "https://e.x/1"), "", func(v *broker.View) { v.Subject, v.Time, v.DataSchema = "a %", "2026-01-31T15:04:05Z", "https://e.x/1" }},
		"empty subject":  {testHeaders("ce-subject", ""), "", func(*broker.View) {}},
		"extensions in the order of names": {testHeaders("CE-TRACEPARENT", "x", "ce-1", "", "ce-partitionkey", "caf%c3%A9"), "", func(v *broker.View) {
			v.Extensions = []broker.Attribute{{Name: "1"}, {Name: "partitionkey", Value: "café"}, {Name: "traceparent", Value: "x"}}
		}},
		"other headers stay behind": {testHeaders("authorization", "Bearer x", "cookie", "x", "ce_x", "y", "cex", "z"), "", func(*broker.View) {}},
		"raw UTF-8":                 {testHeaders("ce-subject", "café €"), "", func(v *broker.View) { v.Subject = "café €" }},
		"URIs that escape":          {testHeaders("ce-dataschema", "https://e.x/%7B%7D"), "", func(v *broker.View) { v.DataSchema = "https://e.x/%7B%7D" }},
		"URIs encoded twice":        {with(testHeaders(), "ce-source", "/caf%25C3%25A9"), "", func(v *broker.View) { v.Source = "/caf%C3%A9" }},
	} {
		t.Run(name, func(t *testing.T) {
			want := plain
			c.want(&want)
			v := broker.View{Extensions: []broker.Attribute{{Name: "left", Value: "over"}}, Foreign: []broker.Header{{Key: "left"}}, Data: []byte("left"), Key: []byte("left")}
			if err := ReadBinary(c.h, []byte(c.body), &v); err != nil {
				t.Fatal(err)
			}
			if got := v.Clone(); !reflect.DeepEqual(got, want) {
				t.Errorf("got  %+v\nwant %+v", got, want)
			}
		})
	}
}

func TestWriteBinary(t *testing.T) {
	h := http.Header{"Ce-Old": {"x"}, "Ce-Subject": {"old"}, "Content-Type": {"old/type"}, "Accept": {"a/b"}}
	v := broker.View{ID: "a b", Source: "/s?q=%22", Type: "té", Time: "2026-01-31T15:04:05Z", DataContentType: "application/json",
		Extensions: []broker.Attribute{{Name: "1x", Value: "\""}, {Name: "empty"}}, Data: []byte("{}"), Key: []byte("k"), Foreign: []broker.Header{{Key: "retry"}}}
	want := http.Header{"Accept": {"a/b"}, "Content-Type": {"application/json"}, "Ce-Specversion": {"1.0"}, "Ce-Id": {"a%20b"}, "Ce-Source": {"/s?q=%2522"},
		"Ce-Type": {"t%C3%A9"}, "Ce-Time": {"2026-01-31T15:04:05Z"}, "Ce-1x": {"%22"}, "Ce-Empty": {""}}
	if body := WriteBinary(h, &v); string(body) != "{}" || !reflect.DeepEqual(h, want) {
		t.Errorf("wrote %v and %s\nwant  %v", h, body, want)
	}
	for key, values := range h {
		if http.CanonicalHeaderKey(key) != key || cap(values) != 1 {
			t.Errorf("header %s is not canonical, or an append to it reaches its neighbour", key)
		}
	}
}

// A response with an event without a datacontenttype has no content type, although
// net/http would guess one.
func TestResponsesGetNoGuessedType(t *testing.T) {
	v := broker.View{ID: "1", Source: "/s", Type: "t", Data: []byte("<html>")}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(WriteBinary(w.Header(), &v))
	}))
	defer s.Close()
	resp, err := http.Get(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var got broker.View
	if err := ReadBinary(resp.Header, v.Data, &got); err != nil || got.DataContentType != "" {
		t.Errorf("read %+v, %v", got, err)
	}
}
