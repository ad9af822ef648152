package broker

import (
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"

	"tidemill.dev"
)

// An HTTP server's address gives an error at once. An earlier version took a minute and gigabytes,
// and ignored signals.
func TestAnHTTPServerIsNoKafka(t *testing.T) {
	web := httptest.NewServer(http.NotFoundHandler())
	defer web.Close()
	names, err := tidemill.NewNames("test")
	if err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err = Open(t.Context(), Options{Addr: web.Listener.Addr().String(), Names: names})
	runtime.ReadMemStats(&after)
	if err == nil || !strings.Contains(err.Error(), "is this Kafka?") {
		t.Error(err)
	}
	if took := after.TotalAlloc - before.TotalAlloc; took > 16<<20 {
		t.Errorf("it took %d MiB", took>>20)
	}
}

func TestModestHandsOnWhatKafkaAnswers(t *testing.T) {
	here, there := net.Pipe()
	defer here.Close()
	const two = "\x00\x00\x00\x03abc\x00\x00\x00\x01d"
	go func() {
		_, _ = there.Write([]byte(two + "HTTP/1.1"))
		there.Close()
	}()
	m := &cautiousConn{Conn: here}
	var got []byte
	var err error
	for b := make([]byte, 2); err == nil; {
		var n int
		n, err = m.Read(b)
		got = append(got, b[:n]...)
	}
	if string(got) != two || !strings.Contains(err.Error(), "does not come from a Kafka") {
		t.Errorf("%q, %v", got, err)
	}
}
