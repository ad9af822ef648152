package agent

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"tidemill.dev"
)

// A server that stops in the middle of a file does not hold the attempt until its deadline.
func TestAnInputThatStops(t *testing.T) {
	kept := http.DefaultTransport
	t.Cleanup(func() { http.DefaultTransport = kept })
	dir := filepath.Join(t.TempDir(), "raw")
	synctest.Test(t, func(t *testing.T) {
		dialled := 0
		wire := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
			dialled++
			here, there := net.Pipe()
			answer := "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwhole"
			if dialled == 1 {
				answer = answer[:len(answer)-2]
			}
			go func() {
				if _, err := http.ReadRequest(bufio.NewReader(there)); err == nil {
					_, _ = io.WriteString(there, answer)
				}
				_, _ = io.Copy(io.Discard, there)
			}()
			return here, nil
		}}
		defer wire.CloseIdleConnections()
		http.DefaultTransport = wire
		ctx, cancel := context.WithTimeout(t.Context(), 24*time.Hour)
		defer cancel()
		began := time.Now()
		in := tidemill.Input{Name: "raw", URI: "http://silent.example/raw", Allow: []string{"http://silent.example/"}}
		err := (&attempt{}).fetchURI(ctx, dir, &in)
		if got, _ := os.ReadFile(filepath.Join(dir, "raw")); err != nil || string(got) != "whole" {
			t.Errorf("%q after %s: %v", got, time.Since(began), err)
		}
	})
	if err := RemoveFolder(dir); err != nil { // it is read-only
		t.Error(err)
	}
}

// A file that the Python client had not finished when it was killed is not in the next attempt's checkpoint.
func TestAnUnfinishedFileOfACheckpoint(t *testing.T) {
	g := newGateway(t)
	tree := g.addTree(map[string]string{"model.pt": "whole", ".0123456789abcdef.part.pt": "wh", "deep/.0123456789abcdef.part": "st", ".partly": "kept"})
	g.order.Checkpoint = &tree
	g.sh(`cd "$TIDEMILL_CHECKPOINT"; find . -type f | LC_ALL=C sort | tr '\n' ' '; exit 1`)
	if f := g.run(g.options()); strings.TrimSpace(f.Result.LastLines) != "./.partly ./model.pt" {
		t.Errorf("the checkpoint has %q", f.Result.LastLines)
	}
}
