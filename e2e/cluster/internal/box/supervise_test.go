//go:build linux

package box

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

// component is a shell that runs a script.
func component(name, script string, after ...Probe) Component {
	return Component{Name: name, Path: "/bin/sh", Args: []string{"-c", script}, After: after}
}

func supervised(t *testing.T, p Plan) (string, Place) {
	t.Helper()
	p.Place = Place{Name: "mine", Dir: t.TempDir()}
	if err := p.Place.make(); err != nil {
		t.Fatal(err)
	}
	return p.supervise(t.Context()).Error(), p.Place
}

func TestOneEndIsTheEndOfAll(t *testing.T) {
	got, place := supervised(t, Plan{Components: []Component{
		component("stays", "exec sleep 1000"),
		component("ends", "echo all is lost; exit 3"),
	}})
	if !strings.Contains(got, "ends ended: exit status 3") || !strings.Contains(got, "all is lost") {
		t.Errorf("the reason is %q", got)
	}
	if log, err := os.ReadFile(place.Log("ends.log")); string(log) != "all is lost\n" {
		t.Errorf("its log is %q, %v", log, err)
	}
}

func TestComponentWaitsForWhatItNeeds(t *testing.T) {
	var asked atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if asked.Add(1) == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	defer server.Close()
	file := filepath.Join(t.TempDir(), "socket")
	got, _ := supervised(t, Plan{Components: []Component{
		component("first", "echo > "+file+"; exec sleep 1000"),
		component("second", "test -e "+file+" && echo found it; exit 1", Probe{File: file}, Probe{URL: server.URL}),
	}})
	if !strings.Contains(got, "found it") {
		t.Errorf("the reason is %q", got)
	}
}

func TestWhatIsDoneOnceMustSucceed(t *testing.T) {
	got, _ := supervised(t, Plan{
		Before:     []Component{component("set it up", "echo no rule >&2; exit 1")},
		Components: []Component{component("stays", "exec sleep 1000")},
	})
	if !strings.Contains(got, "set it up") || !strings.Contains(got, "no rule") {
		t.Errorf("the reason is %q", got)
	}
}

func TestLastLines(t *testing.T) {
	file := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(file, []byte("one\ntwo\nthree\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got := string(lastLines(file, 2)); got != "two\nthree" {
		t.Errorf("the last two lines are %q", got)
	}
	if got := string(lastLines(file, 9)); got != "one\ntwo\nthree" {
		t.Errorf("all lines are %q", got)
	}
}
