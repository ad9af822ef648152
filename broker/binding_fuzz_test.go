package broker

import (
	"bytes"
	"encoding/json"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/cloudevents/sdk-go/v2/types"

	"tidemill.dev/broker/internal/wire"
)

// FuzzDecodeRecord decodes hostile headers and values. Headers are written as lines of key=value; a
// line without '=' is a header with a null value.
func FuzzDecodeRecord(f *testing.F) {
	for _, r := range []*wire.Record{encodeRecord(plainEvent()), testRecord("retry", "1", "CE_X", "y"), testRecord("ce_time", "2026-01-31t15:04:05z"),
		structuredRecord(string(MarshalStructured(plainEvent()))), bareRecord("content-type", "application/cloudevents-batch+json")} {
		f.Add(headerLines(r), r.Value)
	}
	f.Fuzz(func(t *testing.T, lines string, value []byte) {
		r := &wire.Record{Headers: parseHeaders(lines), Value: value}
		v := View{Extensions: []Attribute{{"left", "over"}}}
		if decodeRecord(r, &v) != nil {
			return
		}
		if event, err := v.Event(); err == nil {
			canonicalText(t, event)
		}
		if v.Validate() == nil {
			checkValid(t, &v)
		}
	})
}

// checkValid compares a valid event with the output of our own writers and of sdk-go.
func checkValid(t *testing.T, v *View) {
	t.Helper()
	var back View
	if err := decodeRecord(encodeRecord(v), &back); err != nil {
		t.Fatalf("what we wrote is not read: %v", err)
	}
	back.Key = v.Key
	if a, b := v.Clone(), back.Clone(); !reflect.DeepEqual(a, b) {
		t.Fatalf("binary changed %+v\ninto %+v", a, b)
	}
	if err := UnmarshalStructured(MarshalStructured(v), &back); err != nil {
		t.Fatalf("%s is not read: %v", MarshalStructured(v), err)
	}
	if !bytes.Equal(back.Data, v.Data) && v.dataForm() != formJSON || back.ID != v.ID || back.Subject != v.Subject {
		t.Fatalf("structured changed %+v\ninto %+v", v, back)
	}
	if oracleDiffers(v) {
		return
	}
	e, err := oracleDecode(encodeRecord(v))
	if err != nil {
		t.Fatalf("sdk-go refuses %+v: %v", v, err)
	}
	if got, want := canonicalText(t, *e), canonicalView(t, v); got != want {
		t.Fatalf("sdk-go reads\n%s\nwe read\n%s", got, want)
	}
}

// oracleDiffers reports an intended difference to sdk-go: sdk-go trims attributes, and treats the
// year 1 as no time.
func oracleDiffers(v *View) bool {
	for _, s := range []string{v.ID, v.Type, v.Subject, v.DataContentType} {
		if strings.TrimSpace(s) != s {
			return true
		}
	}
	return strings.HasPrefix(v.Time, "000")
}

func headerLines(r *wire.Record) string {
	var b strings.Builder
	for _, h := range r.Headers {
		b.WriteString(h.Key + "=" + string(h.Value) + "\n")
	}
	return b.String()
}

func parseHeaders(lines string) (headers []wire.Header) {
	for line := range strings.SplitSeq(lines, "\n") {
		key, value, ok := strings.Cut(line, "=")
		h := wire.Header{Key: key}
		if ok {
			h.Value = []byte(value)
		}
		headers = append(headers, h)
	}
	return headers
}

// FuzzDifferentialBinary builds an event with sdk-go and sends it through each combination of the
// two bindings.
func FuzzDifferentialBinary(f *testing.F) {
	f.Add("1", "s", "t", "subject", uint8(0), int64(0), "x", "y", uint8(0), []byte("{}"))
	f.Add("ä", "a b", "t", "", uint8(0), int64(5), "", "", uint8(2), []byte(" 0 "))
	f.Add("ä", "a b", "t", "", uint8(1), int64(1e18), "partitionkey", "\x00", uint8(5), []byte{0xff})
	f.Fuzz(func(t *testing.T, id, source, typ, subject string, contentType uint8, nanos int64, name, value string, kind uint8, data []byte) {
		types := []string{"application/json", "text/plain", "application/octet-stream", "text/xml; charset=utf-8", "application/geo+json"}
		e := event.New()
		e.SetID("i" + legibleText(id))
		e.SetSource("/" + url.PathEscape(legibleText(source)))
		e.SetType("t" + legibleText(typ))
		e.SetSubject(legibleText(subject))
		e.SetTime(time.Unix(0, nanos))
		e.SetDataContentType(types[int(contentType)%len(types)])
		e.DataEncoded, e.DataBase64 = compactJSON(data), true
		if name = "x" + letters(name); len(name) < maxName {
			e.SetExtension(name, typedValue(kind, value, nanos))
		}
		checkAgreement(t, e)
	})
}

// compactJSON removes white space from JSON, because the JSON format keeps the value of data and
// not its layout.
func compactJSON(data []byte) []byte {
	var b bytes.Buffer
	if json.Compact(&b, data) != nil {
		return data
	}
	return b.Bytes()
}

func typedValue(kind uint8, value string, nanos int64) any {
	switch kind % 6 {
	case 1:
		return nanos%2 == 0
	case 2:
		return int32(nanos)
	case 3:
		return []byte(value)
	case 4:
		return types.URIRef{URL: url.URL{Path: "/" + legibleText(value)}}
	case 5:
		return types.Timestamp{Time: time.Unix(0, nanos).UTC()}
	}
	return legibleText(value)
}

// legibleText removes the characters that CloudEvents' String does not allow.
func legibleText(s string) string {
	if len(s) > 1000 {
		s = s[:1000]
	}
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if unicodeFault(string(r)) != nil || r == utf8.RuneError {
			return '?'
		}
		return r
	}, s))
}

func letters(s string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return -1
	}, s)
}

// FuzzStructured reads JSON. sdk-go must read the same event if we find it valid.
func FuzzStructured(f *testing.F) {
	f.Add(MarshalStructured(plainEvent()))
	f.Add([]byte(`{"x":true,"y":-5,"n":null,"data":{"a":[1,"}"]},"type":"t","source":"/s","id":"1","specversion":"1.0"}`))
	f.Add([]byte(`{"datacontenttype":"text/plain","data":"a\"b\ud800","type":"t","source":"/s","id":"1","specversion":"1.0"}`))
	f.Add([]byte(`{"data_base64":"AP8=","type":"t","source":"/s","id":"1","specversion":"1.0"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var v View
		if UnmarshalStructured(b, &v) != nil || v.Validate() != nil {
			return
		}
		checkValid(t, &v)
		if oracleDiffers(&v) {
			return
		}
		e, err := oracleDecode(structuredRecord(string(MarshalStructured(&v))))
		if err != nil {
			t.Fatalf("sdk-go refuses %s: %v", MarshalStructured(&v), err)
		}
		if got, want := canonicalText(t, *e), canonicalView(t, &v); v.dataForm() != formJSON && got != want {
			t.Fatalf("sdk-go reads\n%s\nwe read\n%s", got, want)
		}
	})
}
