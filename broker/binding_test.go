package broker

import (
	"bytes"
	"encoding/json"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/cloudevents/sdk-go/v2/types"

	"tidemill.dev/broker/internal/wire"
	"tidemill.dev/broker/jsonscan"
)

// testRecord returns a binary-mode record with the required attributes and further headers, given
// as pairs of key and value.
func testRecord(pairs ...string) *wire.Record {
	pairs = append([]string{"ce_specversion", "1.0", "ce_id", "1", "ce_source", "/s", "ce_type", "t"}, pairs...)
	return bareRecord(pairs...)
}

func bareRecord(pairs ...string) *wire.Record {
	r := new(wire.Record)
	for i := 0; i < len(pairs); i += 2 {
		r.Headers = append(r.Headers, wire.Header{Key: pairs[i], Value: []byte(pairs[i+1])})
	}
	return r
}

func structuredRecord(body string) *wire.Record {
	r := bareRecord("content-type", "application/cloudevents+json; charset=UTF-8")
	r.Value = []byte(body)
	return r
}

func TestDecodeRefuses(t *testing.T) {
	const core = `{"specversion":"1.0","id":"1","source":"/s","type":"t"`
	many := make([]string, 2*maxHeaders)
	for name, c := range map[string]struct {
		record *wire.Record
		want   string
	}{
		"no event":           {bareRecord("traceparent", "x"), "attribute specversion: is missing: this is not a CloudEvent"},
		"version 0.3":        {bareRecord("ce_specversion", "0.3", "ce_id", "1"), `attribute specversion: is "0.3"; only 1.0 is supported`},
		"no id":              {bareRecord("ce_specversion", "1.0", "ce_source", "/s", "ce_type", "t"), "attribute id: is missing"},
		"blank source":       {testRecord("ce_source", " \t"), "attribute source: is missing"},
		"empty type":         {testRecord("ce_type", ""), "attribute type: is missing"},
		"bytes in subject":   {testRecord("ce_subject", "\xff"), "attribute subject: is not valid UTF-8"},
		"bytes in name":      {testRecord("ce_a\xffb", "x"), `attribute "a\xffb": has a name with characters`},
		"long name":          {testRecord("ce_"+strings.Repeat("a", 999), "x"), "has a name longer than 128 characters"},
		"no name":            {testRecord("ce_", "x"), `attribute "": has no name`},
		"named data":         {testRecord("ce_data", "x"), "reserved for the data itself"},
		"time":               {testRecord("ce_time", "yesterday"), "attribute time: is no RFC 3339 time"},
		"huge value":         {testRecord("ce_x", strings.Repeat("x", maxAttribute+1)), "attribute x: is longer than 65536 bytes"},
		"many headers":       {testRecord(many...), "record has 260 headers; at most 256"},
		"batch":              {bareRecord("content-type", "application/cloudevents-batch+json"), "one event, never a batch"},
		"avro":               {bareRecord("content-type", "Application/CloudEvents+Avro"), "only application/cloudevents+json is read"},
		"null body":          {&wire.Record{Headers: structuredRecord("").Headers}, "not JSON"},
		"array":              {structuredRecord(`[]`), "not a JSON object"},
		"cut":                {structuredRecord(core), "not JSON, byte 54"},
		"JSON 0.3":           {structuredRecord(`{"specversion":"0.3"}`), "only 1.0"},
		"JSON no version":    {structuredRecord(`{}`), "this is not a CloudEvent"},
		"JSON id number":     {structuredRecord(`{"id":1}`), "attribute id: must be a JSON string"},
		"JSON id null":       {structuredRecord(`{"specversion":"1.0","id":null,"source":"/s","type":"t"}`), "attribute id: is missing"},
		"JSON id twice":      {structuredRecord(core + `,"id":"2"}`), "attribute id: is given twice"},
		"JSON ID":            {structuredRecord(core + `,"ID":"2"}`), "attribute id: must be written in lower case"},
		"JSON version twice": {structuredRecord(core + `,"specversion":"1.0"}`), "specversion: is given twice"},
		"JSON x twice":       {structuredRecord(core + `,"x":"1","X":"2"}`), "attribute x: is given twice"},
		"JSON fraction":      {structuredRecord(core + `,"x":1.5}`), `attribute x: is "1.5"; a number must be an integer of 32 bits`},
		"JSON big number":    {structuredRecord(core + `,"x":2147483648}`), "integer of 32 bits"},
		"JSON object":        {structuredRecord(core + `,"x":{}}`), "attribute x: must be a JSON string, boolean or integer"},
		"JSON name":          {structuredRecord(core + `,"x-y":""}`), `attribute "x-y"`},
		"JSON bytes":         {structuredRecord(core + ",\"x\":\"\xff\"}"), "not valid UTF-8"},
		"JSON both":          {structuredRecord(core + `,"data":1,"data_base64":""}`), "both data and data_base64"},
		"JSON base64":        {structuredRecord(core + `,"data_base64":"?"}`), "data_base64: illegal base64"},
		"JSON xml object":    {structuredRecord(core + `,"data":{},"datacontenttype":"text/xml"}`), `data must be a JSON string where datacontenttype is "text/xml"`},
	} {
		t.Run(name, func(t *testing.T) {
			err := decodeRecord(c.record, new(View))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v; want one with %q", err, c.want)
			}
			if err != nil && len(err.Error()) > 300 {
				t.Errorf("error of %d bytes repeats hostile input", len(err.Error()))
			}
		})
	}
}

func TestDecodeReads(t *testing.T) {
	for name, c := range map[string]struct {
		record *wire.Record
		want   View
	}{
		"case of headers": {bareRecord("CE_SpecVersion", "1.0", "Ce_Id", "1", "ce_source", "/s", "ce_type", "t", "ce_TraceParent", "x", "Content-Type", "text/plain"),
			View{ID: "1", Source: "/s", Type: "t", DataContentType: "text/plain", Extensions: []Attribute{{"traceparent", "x"}}}},
		"last header counts": {testRecord("ce_x", "1", "ce_y", "", "ce_x", "2", "ce_id", "2"),
			View{ID: "2", Source: "/s", Type: "t", Extensions: []Attribute{{"x", "2"}, {"y", ""}}}},
		"foreign headers": {testRecord("retry", "\xff\x00", "ce-id", "no"),
			View{ID: "1", Source: "/s", Type: "t", Foreign: []Header{{Key: "retry", Value: []byte("\xff\x00")}, {Key: "ce-id", Value: []byte("no")}}}},
		"content type as attribute": {testRecord("ce_datacontenttype", "text/csv"),
			View{ID: "1", Source: "/s", Type: "t", DataContentType: "text/csv"}},
		"structured": {structuredRecord(`{"x":true,"y":-5,"z":"a\u00e4\n","n":null,"data":{"a": [1,"}"]},"type":"t","source":"/s","id":"1","specversion":"1.0"}`),
			View{ID: "1", Source: "/s", Type: "t", DataContentType: "application/json", Data: []byte(`{"a": [1,"}"]}`),
				Extensions: []Attribute{{"x", "true"}, {"y", "-5"}, {"z", "aä\n"}}}},
		"structured JSON dialect": {structuredRecord(`{"datacontenttype":"application/geo+json; v=1","data":"s","type":"t","source":"/s","id":"1","specversion":"1.0"}`),
			View{ID: "1", Source: "/s", Type: "t", DataContentType: "application/geo+json; v=1", Data: []byte(`"s"`)}},
		"structured text": {structuredRecord(`{"datacontenttype":"text/plain","data":"a\"b","type":"t","source":"/s","id":"1","specversion":"1.0"}`),
			View{ID: "1", Source: "/s", Type: "t", DataContentType: "text/plain", Data: []byte(`a"b`)}},
		"structured null": {structuredRecord(`{"data":null,"type":"t","source":"/s","id":"1","specversion":"1.0"}`),
			View{ID: "1", Source: "/s", Type: "t", DataContentType: "application/json", Data: []byte("null")}},
		"structured base64": {structuredRecord(`{"data_base64":"AP8=","type":"t","source":"/s","id":"1","specversion":"1.0"}`),
			View{ID: "1", Source: "/s", Type: "t", Data: []byte{0, 255}}},
	} {
		t.Run(name, func(t *testing.T) {
			v := View{Extensions: []Attribute{{"left", "over"}}, Foreign: []Header{{Key: "left"}}, Data: []byte("left")}
			if err := decodeRecord(c.record, &v); err != nil {
				t.Fatal(err)
			}
			if got := v.Clone(); !reflect.DeepEqual(got, c.want) {
				t.Errorf("got  %+v\nwant %+v", got, c.want)
			}
		})
	}
}

func TestNullHeaderIsUnset(t *testing.T) {
	r := testRecord()
	r.Headers = append(r.Headers, wire.Header{Key: "ce_x"})
	var v View
	if err := decodeRecord(r, &v); err != nil || len(v.Extensions) != 0 {
		t.Errorf("got %+v, %v", v, err)
	}
}

func TestRecordKey(t *testing.T) {
	partitioned := []Attribute{{"partitionkey", "p"}}
	for want, v := range map[string]View{
		"k": {Key: []byte("k"), Subject: "s", Extensions: partitioned},
		"p": {Subject: "s", Extensions: partitioned},
		"s": {Subject: "s", Extensions: []Attribute{{"partitionkey", ""}}},
	} {
		if got := string(v.recordKey()); got != want {
			t.Errorf("%+v: key %q", v, got)
		}
	}
	if new(View).recordKey() != nil {
		t.Error("an event without a key got one")
	}
}

func TestAttribute(t *testing.T) {
	v := View{ID: "1", Extensions: []Attribute{{"x", ""}}}
	for name, want := range map[string]string{"id": "1 true", "specversion": "1.0 true", "subject": " false", "x": " true", "y": " false"} {
		value, ok := v.Attribute(name)
		if got := value + map[bool]string{true: " true", false: " false"}[ok]; got != want {
			t.Errorf("%s: %q; want %q", name, got, want)
		}
	}
}

func TestCloneOutlivesTheRecord(t *testing.T) {
	r := testRecord("ce_x", "y", "foreign", "f")
	r.Value, r.Key = []byte("value"), []byte("key")
	var v View
	if err := decodeRecord(r, &v); err != nil {
		t.Fatal(err)
	}
	c := v.Clone()
	before, e := canonicalView(t, &c), must(v.Event())
	for _, b := range append([][]byte{r.Key, r.Value}, values(r)...) {
		clear(b)
	}
	if canonicalView(t, &c) != before || canonicalText(t, e) != before || string(c.Key) != "key" || string(c.Foreign[0].Value) != "f" {
		t.Error("a copy changed with the record's bytes")
	}
	if _ = append(c.Data, 'X'); string(c.Key) != "key" {
		t.Error("an append to the data reached the key")
	}
}

func values(r *wire.Record) (all [][]byte) {
	for _, h := range r.Headers {
		if h.Key != "ce_specversion" {
			all = append(all, h.Value)
		}
	}
	return all
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func TestValidateRefuses(t *testing.T) {
	for want, change := range map[string]func(*View){
		"attribute id: is missing":                            func(v *View) { v.ID = " " },
		"attribute id: has the control character U+000A":      func(v *View) { v.ID = "a\nb" },
		"attribute subject: has the control character U+0085": func(v *View) { v.Subject = "a\u0085" },
		"attribute type: has the noncharacter U+FFFE":         func(v *View) { v.Type = "\ufffe" },
		"attribute subject: is not valid UTF-8":               func(v *View) { v.Subject = "\xff" },
		"attribute source: is no URI-reference":               func(v *View) { v.Source = "/a b" },
		"attribute source: is no URI":                         func(v *View) { v.Source = "#" },
		"attribute source: is no":                             func(v *View) { v.Source = "//" },
		"attribute source: is no URI-reference;":              func(v *View) { v.Source = "/a%zz" },
		"attribute dataschema: is not an absolute URI":        func(v *View) { v.DataSchema = "/a" },
		"attribute time: is no RFC 3339 time":                 func(v *View) { v.Time = "2026-02-30T00:00:00Z" },
		"attribute datacontenttype: is that of a whole event": func(v *View) { v.DataContentType = " application/cloudevents+json" },
		"attribute datacontenttype: is not a media type":      func(v *View) { v.DataContentType = "json" },
		"marks structured mode":                               func(v *View) { v.DataContentType = "application/CloudEvents+json" },
		"attribute \"Upper\": has a name":                     func(v *View) { v.Extensions = []Attribute{{"Upper", ""}} },
		"attribute id: is not an extension":                   func(v *View) { v.Extensions = []Attribute{{"id", ""}} },
		"attribute x: is given twice":                         func(v *View) { v.Extensions = []Attribute{{"x", ""}, {"x", ""}} },
		"attribute x: has the control":                        func(v *View) { v.Extensions = []Attribute{{"x", "\x00"}} },
		`header "CE_x": has the name of an attribute`:         func(v *View) { v.Foreign = []Header{{Key: "CE_x"}} },
		"at most 256 are carried":                             func(v *View) { v.Foreign = make([]Header, 256) },
	} {
		v := View{ID: "1", Source: "/s", Type: "t"}
		if err := v.Validate(); err != nil {
			t.Fatal(err)
		}
		change(&v)
		if err := v.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v; want one with %q", err, want)
		}
	}
}

func TestFromEventRefuses(t *testing.T) {
	old := event.New("0.3")
	bad := event.New()
	bad.SetSource("%zz")
	for want, e := range map[string]event.Event{"only 1.0 is supported": old, "this is not a CloudEvent": {}, "attribute source": bad} {
		if _, err := FromEvent(e); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v; want one with %q", err, want)
		}
	}
}

// typedEvent returns an event with an extension of each type of sdk-go.
func typedEvent() event.Event {
	e := event.New()
	e.SetID("1")
	e.SetSource("https://example.com/a?b=c#d")
	e.SetType("t")
	e.SetSubject("bot-42 ä")
	e.SetTime(time.Date(2026, 1, 31, 15, 4, 5, 678, time.FixedZone("", 3600)))
	e.SetDataSchema("https://example.com/schema/1")
	for name, value := range map[string]any{
		"abool": true, "anint": int32(-7), "astring": "x y", "abinary": []byte{0, 255},
		"auri": types.URI{URL: *must(url.Parse("https://example.com/u"))}, "aref": types.URIRef{URL: *must(url.Parse("../r"))},
		"atime": types.Timestamp{Time: time.Unix(1, 5).UTC()}, "empty": "", "partitionkey": "p",
	} {
		e.SetExtension(name, value)
	}
	return e
}

func TestAgreesWithOracle(t *testing.T) {
	for name, set := range map[string]func(*event.Event) error{
		"no data":      func(*event.Event) error { return nil },
		"JSON":         func(e *event.Event) error { return e.SetData("application/json", map[string]int{"a": 1}) },
		"JSON bytes":   func(e *event.Event) error { return e.SetData("application/json", []byte(`{"a":1}`)) },
		"null":         func(e *event.Event) error { return e.SetData("application/json", nil) },
		"text":         func(e *event.Event) error { return e.SetData("text/plain", "\"quoted\"\n") },
		"binary":       func(e *event.Event) error { return e.SetData("application/octet-stream", []byte{0, 1, 255}) },
		"JSON dialect": func(e *event.Event) error { return e.SetData("application/geo+json", []byte(`{"a":1}`)) },
		"untyped": func(e *event.Event) error {
			err := e.SetData("", []byte(`{}`))
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := typedEvent()
			if err := set(&e); err != nil {
				t.Fatal(err)
			}
			checkAgreement(t, e)
		})
	}
}

// checkAgreement sends an event through each combination of our binding and sdk-go's.
func checkAgreement(t *testing.T, e event.Event) {
	t.Helper()
	want := canonicalText(t, e)
	check := func(path, got string) {
		t.Helper()
		if got != want {
			t.Errorf("%s:\ngot  %s\nwant %s", path, got, want)
		}
	}
	ours, err := FromEvent(e)
	if err != nil {
		t.Fatal(err)
	}
	check("there and back", canonicalView(t, &ours))
	checkDecode := func(path string, r *wire.Record) {
		t.Helper()
		var v View
		if err := decodeRecord(r, &v); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		check(path, canonicalView(t, &v))
	}
	checkDecode("sdk-go's binary → ours", oracleEncode(t, e.Clone(), false))
	checkDecode("ours → ours", encodeRecord(&ours))
	check("ours → sdk-go", canonicalText(t, *must(oracleDecode(encodeRecord(&ours)))))
	if e.DataContentType() == "" && e.Data() != nil {
		return // structured mode adds the content type that JSON implies
	}
	checkDecode("sdk-go's structured → ours", oracleEncode(t, e.Clone(), true))
	checkDecode("our structured → ours", structuredRecord(string(MarshalStructured(&ours))))
	if media, _ := mediaType(e.DataContentType()); isJSON(media) && media != contentTypeJSON {
		return // sdk-go cannot read +json data that is JSON
	}
	check("our structured → sdk-go", canonicalText(t, *must(oracleDecode(structuredRecord(string(MarshalStructured(&ours)))))))
}

func TestStructuredIsOneLine(t *testing.T) {
	for data, want := range map[string]string{
		"{\n  \"a\": \"x y\"\r\n}": `"data":{"a":"x y"}`,
		"{\"a\":":                  `"data_base64":"eyJhIjo="`,
		"\"\xff\"":                 `"data_base64":"Iv8i"`,
		"":                         `"data_base64":""`,
	} {
		v := View{ID: "a\n\x7f\"\\", Source: "/s", Type: "t", Data: []byte(data)}
		got := MarshalStructured(&v)
		if !bytes.Contains(got, []byte(want)) || bytes.ContainsAny(got, "\n\r\x7f") {
			t.Errorf("%q: %s", data, got)
		}
		var back View
		if err := UnmarshalStructured(got, &back); err != nil || back.ID != v.ID {
			t.Errorf("%s: %q, %v", got, back.ID, err)
		}
	}
	latin := View{ID: "1", Source: "/s", Type: "t", DataContentType: "text/plain; charset=latin1", Data: []byte("a")}
	if got := MarshalStructured(&latin); !bytes.Contains(got, []byte("data_base64")) {
		t.Errorf("text of another charset became UTF-8: %s", got)
	}
}

func TestEncoderForgetsNothingAndStaysSmall(t *testing.T) {
	e := new(encoder)
	v := View{ID: "1", Source: "/s", Type: "t"}
	for i := range 3 * maxInterned {
		name := "x" + strings.Repeat("a", i%90) + string(rune('a'+i%26))
		v.Extensions = []Attribute{{name, ""}, {"x", ""}}
		_, _, headers := e.encode(&v, nil)
		if headers[4].Key != "ce_"+name || headers[5].Key != "ce_x" || headers[5].Value == nil {
			t.Fatalf("%s: headers %v", name, headers)
		}
	}
	if len(e.keys) > maxInterned || len(e.recent) > maxHeaders {
		t.Errorf("remembers %d keys", len(e.keys))
	}
}

func TestPlainString(t *testing.T) {
	for at := range 20 {
		for c := range 256 {
			b := bytes.Repeat([]byte(" ~"), 10)
			b[at] = byte(c)
			for end := at + 1; end <= len(b); end++ {
				if want := c >= ' ' && c < 0x7f; plainString(string(b[:end])) != want {
					t.Fatalf("byte %#x at %d of %d: %v", c, at, end, !want)
				}
			}
		}
	}
}

// An event may be inside a batch or a line of a tail, whose reader counts these levels too. One
// deeply nested event must not make the rest unreadable.
func TestDeepDataIsReadBackFromWhatCarriesIt(t *testing.T) {
	for _, depth := range []int{1, 1000, jsonscan.MaxDepth - maxWrapping, jsonscan.MaxDepth - maxWrapping + 1, jsonscan.MaxDepth - 1, jsonscan.MaxDepth} {
		data := strings.Repeat("[", depth) + strings.Repeat("]", depth)
		v := View{ID: "1", Source: "/s", Type: "t", DataContentType: contentTypeJSON, Data: []byte(data)}
		line, err := json.Marshal(map[string]any{"event": json.RawMessage(MarshalStructured(&v))})
		if err != nil {
			t.Errorf("depth %d: %v", depth, err)
			continue
		}
		var told struct{ Event json.RawMessage }
		var back View
		if err := json.Unmarshal(line, &told); err != nil {
			t.Errorf("depth %d: %v", depth, err)
		} else if err := UnmarshalStructured(told.Event, &back); err != nil || string(back.Data) != data {
			t.Errorf("depth %d: %d bytes, %v", depth, len(back.Data), err)
		}
	}
}
