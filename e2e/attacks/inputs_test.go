//go:build slow && linux

package attacks

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	structured = "application/cloudevents+json"
	batch      = "application/cloudevents-batch+json"
)

// deep returns n nested arrays.
func deep(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }

// zipped returns a text that is a thousand times as long once it is unpacked.
func zipped() string {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = z.Write(make([]byte, 64<<20)) // a buffer takes all
	_ = z.Close()
	return b.String()
}

// withData returns an event in structured mode.
func withData(data string) string {
	return `{"specversion":"1.0","id":"1","source":"/attacks","type":"order","subject":"bot-42","data":` + data + `}`
}

// must checks the answer to a hostile request: it comes in the usual time, and it is either a success or a
// problem document of the caller's fault.
func (w *world) must(what string, r *http.Request, allowed ...int) answer {
	w.Helper()
	began := time.Now()
	a := w.do(r)
	if took := time.Since(began); took > healthyWithin {
		w.Errorf("%s: answered after %s", what, took)
	}
	for _, status := range allowed {
		if a.status == status {
			return a
		}
	}
	switch {
	case a.status >= 500 || a.status == 0:
		w.Errorf("%s: %d %.300s", what, a.status, a.body)
	case a.status >= 400 && strings.HasPrefix(a.header.Get("Content-Type"), "application/"):
		w.problem(what, a)
	}
	return a
}

// No event in any mode ends the process. The answer is never a fault of the server.
func TestHostileEvents(t *testing.T) {
	w := openWorld(t, nil)
	for name, body := range hostileEvents() {
		w.must(name+", structured", w.request(http.MethodPost, "/events", body, "publisher", "content-type", structured))
		w.must(name+", in a batch", w.request(http.MethodPost, "/events", "["+body+","+withData("1")+"]", "publisher", "content-type", batch))
		w.must(name+", as a batch", w.request(http.MethodPost, "/streams/messages", body, "publisher", "content-type", batch))
		w.must(name+", as data", w.request(http.MethodPost, "/events", body, "publisher", "content-type", "application/json",
			"ce-specversion", "1.0", "ce-id", name, "ce-source", "/attacks", "ce-type", "message", "ce-subject", "bot-42"))
	}
	for name, headers := range hostileAttributes() {
		usual := []string{"ce-specversion", "1.0", "ce-id", "1", "ce-source", "/attacks", "ce-type", "order"}
		w.must(name+", binary", w.request(http.MethodPost, "/events", "{}", "publisher", append(usual, headers...)...))
	}
	for _, reserved := range []string{"tidemill.run.requested", "tidemill.model.promoted", "tidemill.x"} {
		body := `{"specversion":"1.0","id":"1","source":"/tidemill/gateway","type":"` + reserved + `"}`
		if a := w.must(reserved, w.request(http.MethodPost, "/events", body, "approver", "content-type", structured)); a.status != http.StatusForbidden {
			t.Errorf("%s from outside: %d %s", reserved, a.status, a.body)
		}
	}
	for _, own := range []string{"facts", "commands", "dead-letters", "progress"} {
		if a := w.must("to "+own, w.request(http.MethodPost, "/streams/"+own, withData("1"), "approver", "content-type", structured)); a.status != http.StatusForbidden {
			t.Errorf("an event to %s: %d %s", own, a.status, a.body)
		}
	}
}

func hostileEvents() map[string]string {
	all := map[string]string{
		"nothing":                  "",
		"null":                     "null",
		"a number":                 "1",
		"a text":                   `"x"`,
		"an empty object":          "{}",
		"an empty array":           "[]",
		"arrays in arrays":         deep(100_000),
		"half of arrays in arrays": strings.Repeat("[", 500_000),
		"objects in objects":       strings.Repeat(`{"a":`, 100_000),
		"two values":               withData("1") + withData("2"),
		"a huge number":            withData("1e999999999"),
		"a long number":            withData(strings.Repeat("9", 500_000)),
		"a long fraction":          withData("0." + strings.Repeat("0", 500_000) + "1"),
		"not a number":             withData("NaN"),
		"a key twice":              `{"specversion":"1.0","id":"1","id":"2","source":"/attacks","type":"order","type":"tidemill.run.requested","subject":"a","subject":"b"}`,
		"keys in another case":     `{"SpecVersion":"1.0","ID":"1","Source":"/attacks","Type":"order"}`,
		"a NUL":                    `{"specversion":"1.0","id":"1\u0000","source":"/attacks","type":"order"}`,
		"half a surrogate":         `{"specversion":"1.0","id":"\ud800","source":"/attacks","type":"order"}`,
		"invalid UTF-8":            "{\"specversion\":\"1.0\",\"id\":\"\xff\xfe\",\"source\":\"/attacks\",\"type\":\"order\"}",
		"invalid UTF-8 in data":    withData("\"\xc3\x28\xa0\xa1\""),
		"a BOM":                    "\ufeff" + withData("1"),
		"UTF-16":                   "\xff\xfe{\x00}\x00",
		"another version":          `{"specversion":"0.3","id":"1","source":"/attacks","type":"order"}`,
		"a list as id":             `{"specversion":"1.0","id":["1"],"source":"/attacks","type":"order"}`,
		"an object as attribute":   `{"specversion":"1.0","id":"1","source":"/attacks","type":"order","x":{"y":1}}`,
		"a number too large":       `{"specversion":"1.0","id":"1","source":"/attacks","type":"order","x":99999999999999999999}`,
		"data twice":               `{"specversion":"1.0","id":"1","source":"/attacks","type":"order","data":1,"data_base64":"AA=="}`,
		"bad base64":               `{"specversion":"1.0","id":"1","source":"/attacks","type":"order","data_base64":"****"}`,
		"a bad time":               `{"specversion":"1.0","id":"1","source":"/attacks","type":"order","time":"9999-99-99T99:99:99Z"}`,
		"a long id":                `{"specversion":"1.0","id":"` + strings.Repeat("i", 900_000) + `","source":"/attacks","type":"order"}`,
		"a source with a newline":  `{"specversion":"1.0","id":"1","source":"/a\r\nx: y","type":"order"}`,
		"another caller":           `{"specversion":"1.0","id":"1","source":"/attacks","type":"order","authid":"boss"}`,
		"a prototype":              `{"specversion":"1.0","id":"1","source":"/attacks","type":"order","__proto__":"x","constructor":"y"}`,
		"a schema of a file":       `{"specversion":"1.0","id":"1","source":"/attacks","type":"order","dataschema":"file:///etc/passwd"}`,
		"too much":                 withData(`"` + strings.Repeat("x", 2<<20) + `"`),
		"XML":                      `<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><a>&x;</a>`,
	}
	var wide strings.Builder
	for i := range 10_000 {
		fmt.Fprintf(&wide, `,"x%d":"y"`, i)
	}
	all["many attributes"] = `{"specversion":"1.0","id":"1","source":"/attacks","type":"order"` + wide.String() + `}`
	return all
}

func hostileAttributes() map[string][]string {
	return map[string][]string{
		"an escaped newline":    {"ce-subject", "%0d%0ax: y"},
		"an escaped NUL":        {"ce-subject", "%00"},
		"an escaped half":       {"ce-subject", "%"},
		"escaped invalid UTF-8": {"ce-subject", "%ff%fe"},
		"an attribute twice":    {"ce-subject", "a", "ce-subject", "b"},
		"a type twice":          {"ce-type", "tidemill.run.requested"},
		"a long attribute":      {"ce-subject", strings.Repeat("s", 10_000)},
		"another caller":        {"ce-authid", "boss"},
		"a packed body":         {"content-encoding", "gzip", "content-type", "application/json"},
		"a form":                {"content-type", "multipart/form-data; boundary=x"},
		"a form without an end": {"content-type", "multipart/form-data; boundary=" + strings.Repeat("x", 5_000)},
		"a strange type":        {"content-type", "a/b; c=\"\\"},
		"a strange charset":     {"content-type", "application/cloudevents+json; charset=utf-7"},
		"a bad trace":           {"traceparent", "00-zz-zz-zz", "tracestate", strings.Repeat("a=b,", 2_000)},
	}
}

// A body that is small until it is unpacked stays small.
func TestPackedBodies(t *testing.T) {
	w := openWorld(t, nil)
	body := zipped()
	w.within("packed bodies", func() {
		for range 20 {
			for _, kind := range []string{structured, batch, "application/json"} {
				w.must("a packed "+kind, w.request(http.MethodPost, "/events", body, "publisher", "content-type", kind, "content-encoding", "gzip",
					"ce-specversion", "1.0", "ce-id", "1", "ce-source", "/attacks", "ce-type", "order"))
			}
		}
	})
}

// Every operation of the document stands hostile bodies.
func TestHostileBodies(t *testing.T) {
	w := openWorld(t, nil)
	bodies := map[string]string{
		"nothing": "", "null": "null", "a number": "1e999999", "a text": `"x"`, "an array": "[]", "arrays in arrays": deep(50_000),
		"objects in objects": strings.Repeat(`{"where":`, 50_000), "invalid UTF-8": "{\"key\":\"\xff\"}", "a key twice": `{"dryRun":true,"key":"a","key":"b"}`,
		"unknown keys": `{"__proto__":{"all":true},"DryRun":false}`, "wrong kinds": `{"recipe":{},"key":[],"all":"yes","runs":{"a":1},"model":7,"version":[],"rate":"1","where":0}`,
		"numbers at the edge": `{"rate":1e308,"priority":-9223372036854775808,"first":9223372036854775807,"limit":99999999999999999999,"dryRun":true}`,
		"paths":               `{"recipe":"../../x","key":"../../../etc/passwd","model":"../x","dataset":"../../x","branch":"a/../../b","path":"/etc/passwd","dryRun":true}`,
		"lines":               "{\"dataset\":\"a\",\"request\":\"r\",\"dryRun\":true}\n{\"path\":\"../../etc/passwd\",\"digest\":\"x\",\"size\":-1}\n{\"path\":\"/a\\u0000\"}\n",
		"bytes":               "\x00\x01\x02\xff\xfe\xfd", "a huge text": `{"key":"` + strings.Repeat("k", 1<<20) + `","dryRun":true}`,
	}
	var work sync.WaitGroup
	for _, o := range w.operations() {
		if o.method != http.MethodPost {
			continue
		}
		work.Go(func() {
			for name, body := range bodies {
				w.must(fmt.Sprintf("%s with %s", o, name), w.request(o.method, o.filled(), body, "approver", "content-type", "application/json"), http.StatusNotImplemented)
			}
		})
	}
	work.Wait()
}

// Every parameter of the document stands hostile values.
func TestHostileQueries(t *testing.T) {
	w := openWorld(t, nil)
	values := []string{"", "%00", "%ff%fe", "../../../../etc/passwd", "-1", "9223372036854775808", "NaN", "1e308", "{}", "%27%22%3B--", "a%0d%0ab", "%", ";", strings.Repeat("x", 8<<10), strings.Repeat("%28", 2<<10)}
	var work sync.WaitGroup
	for path, names := range w.parameters() {
		work.Go(func() {
			for _, name := range names {
				for _, value := range values {
					what := fmt.Sprintf("GET %s?%s=%.30s", path, name, value)
					r := w.request(http.MethodGet, path, "", "approver")
					r.URL.RawQuery = name + "=" + value + "&follow=false"
					w.must(what, r, http.StatusNotImplemented)
				}
			}
			r := w.request(http.MethodGet, path, "", "approver")
			r.URL.RawQuery = strings.Repeat("a=b&", 4<<10)
			w.must("GET "+path+" with very many parameters", r, http.StatusNotImplemented)
		})
	}
	work.Wait()
}

// parameters returns the query parameters of each path with GET.
func (w *world) parameters() map[string][]string {
	w.Helper()
	type parameter struct{ In, Name, Ref string }
	var document struct {
		Paths      map[string]map[string]json.RawMessage
		Components struct{ Parameters map[string]parameter }
	}
	a := w.do(w.request(http.MethodGet, "/api/v1/openapi.json", "", "publisher"))
	if err := json.Unmarshal([]byte(strings.ReplaceAll(a.body, `"$ref"`, `"Ref"`)), &document); err != nil {
		w.Fatal(err)
	}
	all := map[string][]string{}
	for path, item := range document.Paths {
		var get struct{ Parameters []parameter }
		if item["get"] == nil || strings.HasPrefix(path, "/agent/") {
			continue
		}
		if err := json.Unmarshal(item["get"], &get); err != nil {
			w.Fatal(err)
		}
		filled := operation{path: path}.filled()
		for _, p := range get.Parameters {
			if p.Ref != "" {
				p = document.Components.Parameters[strings.TrimPrefix(p.Ref, "#/components/parameters/")]
			}
			if p.In == "query" {
				all[filled] = append(all[filled], p.Name)
			}
		}
	}
	if len(all) < 10 {
		w.Fatalf("the document has parameters only for %d paths", len(all))
	}
	return all
}

// A filter comes with a request, or in the config. It must not take long, whatever it says.
func TestHostileFilters(t *testing.T) {
	w := openWorld(t, nil)
	w.do(w.request(http.MethodPost, "/events", "{}", "publisher", "ce-specversion", "1.0", "ce-id", "1", "ce-source", "/attacks", "ce-type", "order",
		"ce-subject", strings.Repeat("a", 8<<10)))
	for name, where := range hostileFilters() {
		began := time.Now()
		w.must(name, w.request(http.MethodGet, "/api/v1/streams/events/events?from=beginning&follow=false&where="+url.QueryEscape(where), "", "reader"))
		body, _ := json.Marshal(map[string]any{"where": where, "dryRun": true}) // texts can be encoded
		w.must(name, w.request(http.MethodPost, "/api/v1/runs/cancel", string(body), "approver", "content-type", "application/json"))
		w.must(name, w.request(http.MethodPost, "/api/v1/dead-letters/drop", string(body), "approver", "content-type", "application/json"))
		if took := time.Since(began); took > healthyWithin {
			t.Errorf("%s took %s", name, took)
		}
	}
}

func hostileFilters() map[string]string {
	return map[string]string{
		"many parentheses":  strings.Repeat("(", 8000) + "true" + strings.Repeat(")", 8000),
		"half of them":      strings.Repeat("(", 16_000),
		"many NOTs":         strings.Repeat("NOT ", 4000) + "true",
		"many minuses":      strings.Repeat("-", 16_000) + "1 = 1",
		"a long chain":      strings.Repeat("true AND ", 1700) + "true",
		"a long list":       "subject IN (" + strings.TrimSuffix(strings.Repeat("'a',", 3000), ",") + ")",
		"a greedy pattern":  "subject LIKE '" + strings.Repeat("%a", 40) + "b'",
		"a longer pattern":  "subject LIKE '" + strings.Repeat("%a%_", 2000) + "b'",
		"division by zero":  "1 / 0 = 1",
		"the smallest one":  "-2147483648 / -1 = 1",
		"a remainder":       "-2147483648 % -1 = 1",
		"a number too big":  "99999999999999999999 = 1",
		"an absolute value": "ABS(-2147483648) = 1",
		"a far part":        "SUBSTRING(subject, 2147483647, 2147483647) = ''",
		"a negative part":   "LEFT(subject, -2147483648) = ''",
		"growing texts":     strings.Repeat("CONCAT(subject,", 800) + "subject" + strings.Repeat(")", 800) + " = ''",
		"doubled texts":     strings.Repeat("CONCAT_WS(subject,subject,", 500) + "subject" + strings.Repeat(")", 500) + " = ''",
		"an unknown word":   "SLEEP(1000)",
		"an open text":      "'" + strings.Repeat("\\'", 8000),
		"invalid UTF-8":     "subject = '\xff\xfe'",
		"a NUL":             "subject = '\x00'",
		"many EXISTS":       strings.Repeat("EXISTS a AND ", 1200) + "EXISTS b",
	}
}
