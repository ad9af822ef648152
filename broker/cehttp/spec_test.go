package cehttp

import (
	"bufio"
	"io"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"tidemill.dev/broker"
)

// The examples of the binding, version 1.0.2, with its "..." filled in. The test reads
// each message from its wire format, as a request and as a response.

const specAttributes = `ce-specversion: 1.0
ce-type: com.example.someevent
ce-time: 2018-04-05T03:56:24Z
ce-id: 1234-1234-1234
ce-source: /mycontext/subcontext
`

const specEvent = `{
    "specversion" : "1.0",
    "type" : "com.example.someevent",
    "time" : "2018-04-05T03:56:24Z",
    "id" : "1234-1234-1234",
    "source" : "/mycontext/subcontext",
    "datacontenttype" : "application/json; charset=utf-8",

    "data" : {
        "much" : "wow"
    }
}
`

const specBatch = `[
` + specEvent + `    ,
    {
        "specversion" : "1.0",
        "type" : "com.example.someotherevent",
        "id" : "1234-1234-1235",
        "source" : "/mycontext/subcontext",
        "data_base64" : "AP8="
    }
]
`

func specView(data string) broker.View {
	return broker.View{ID: "1234-1234-1234", Source: "/mycontext/subcontext", Type: "com.example.someevent", Time: "2018-04-05T03:56:24Z",
		DataContentType: "application/json; charset=utf-8", Data: []byte(data)}
}

func TestSpecExamples(t *testing.T) {
	other := broker.View{ID: "1234-1234-1235", Source: "/mycontext/subcontext", Type: "com.example.someotherevent", Data: []byte{0, 255}}
	json := strings.TrimSpace(specEvent[strings.Index(specEvent, `"data" :`)+len(`"data" :`) : len(specEvent)-2])
	for name, c := range map[string]struct {
		message string
		mode    Mode
		want    []broker.View
	}{
		"3.1.4 request":  {"POST /someresource HTTP/1.1\n" + specAttributes + "Content-Type: application/json; charset=utf-8", Binary, []broker.View{specView(specEvent)}},
		"3.1.4 response": {"HTTP/1.1 200 OK\n" + specAttributes + "Content-Type: application/json; charset=utf-8", Binary, []broker.View{specView(specEvent)}},
		"3.2.4 request":  {"PUT /myresource HTTP/1.1\nContent-Type: application/cloudevents+json; charset=utf-8", Structured, []broker.View{specView(json)}},
		"3.2.4 response": {"HTTP/1.1 200 OK\nContent-Type: application/cloudevents+json; charset=UTF-8", Structured, []broker.View{specView(json)}},
		"3.3.3 request":  {"PUT /myresource HTTP/1.1\nContent-Type: application/cloudevents-batch+json; charset=utf-8", Batch, []broker.View{specView(json), other}},
		"3.3.3 response": {"HTTP/1.1 200 OK\nContent-Type: application/cloudevents-batch+json; charset=UTF-8", Batch, []broker.View{specView(json), other}},
	} {
		t.Run(name, func(t *testing.T) {
			body := map[Mode]string{Binary: specEvent, Structured: specEvent, Batch: specBatch}[c.mode]
			h, b := parseMessage(t, c.message, body)
			got, err := readAll(h, b)
			if err != nil || !reflect.DeepEqual(got, c.want) {
				t.Errorf("got  %+v, %v\nwant %+v", got, err, c.want)
			}
			if mode, err := ModeOf(h); mode != c.mode || err != nil {
				t.Errorf("mode is %s, %v", mode, err)
			}
		})
	}
}

// parseMessage reads a message as net/http does. Here lines end in a bare line feed.
func parseMessage(t testing.TB, head, body string) (http.Header, []byte) {
	t.Helper()
	head = strings.ReplaceAll(head, "\n", "\r\n") + "\r\nHost: webhook.example.com\r\nConnection: close\r\n\r\n"
	r := bufio.NewReader(strings.NewReader(head + body))
	if !strings.HasPrefix(head, "HTTP/") {
		req, err := http.ReadRequest(r)
		if err != nil {
			t.Fatal(err)
		}
		return req.Header, []byte(body)
	}
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.Header, b
}

// readAll reads a message of any mode. Every event of a batch must be readable.
func readAll(h http.Header, body []byte) (all []broker.View, fault error) {
	mode, err := ModeOf(h)
	if err != nil {
		return nil, err
	}
	var v broker.View
	switch mode {
	case Batch:
		err = ReadBatch(h, body, 1000, func(_ int, v *broker.View, err error) {
			if err != nil {
				fault = err
			}
			all = append(all, v.Clone())
		})
		if err != nil {
			fault = err
		}
		return all, fault
	case Structured:
		err = ReadStructured(h, body, &v)
	default:
		err = ReadBinary(h, body, &v)
	}
	return []broker.View{v.Clone()}, err
}
