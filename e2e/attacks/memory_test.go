//go:build slow && linux

package attacks

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// memoryBudget is the memory that an attack may take beyond that of the process at rest.
const memoryBudget = 256 << 20

// Strangers and callers cannot make the process take much memory.
func TestMemoryStaysBelowItsBudget(t *testing.T) {
	for name, attack := range map[string]func(*world){
		"half heads":                      (*world).holdHeads,
		"slow bodies":                     (*world).holdBodies,
		"open tails":                      (*world).holdTails,
		"data that is large when decoded": (*world).sendWideData,
	} {
		t.Run(name, func(t *testing.T) {
			w := openWorld(t, nil)
			w.healthy("at rest")
			w.within(name, func() { attack(w) })
		})
	}
}

// within fails the test if the process takes more memory than the budget during an attack, beyond what it
// has before.
func (w *world) within(name string, attack func()) {
	w.Helper()
	rest := w.memory("VmRSS")
	w.forgetPeak()
	attack()
	more := w.memory("VmHWM") - rest
	w.Logf("%s: %d MiB before, %d MiB more at the peak", name, rest>>20, more>>20)
	if more > memoryBudget {
		w.Errorf("%s: %d MiB beyond the %d MiB before; at most %d are allowed", name, more>>20, rest>>20, int64(memoryBudget)>>20)
	}
}

// memory returns a number of bytes from the process's status.
func (w *world) memory(field string) int64 {
	w.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", w.cmd.Process.Pid))
	if err != nil {
		w.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^` + field + `:\s+(\d+) kB$`).FindStringSubmatch(string(text))
	if m == nil {
		w.Fatalf("no %s in:\n%s", field, text)
	}
	kib, err := strconv.ParseInt(m[1], 10, 64)
	if err != nil {
		w.Fatal(err)
	}
	return kib << 10
}

// forgetPeak makes the kernel forget the peak of the process's memory.
func (w *world) forgetPeak() {
	w.Helper()
	const forgetPeak = "5"
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", w.cmd.Process.Pid), []byte(forgetPeak), 0); err != nil {
		w.Fatal(err)
	}
}

// connections returns the number of connections to open: the wanted number, or as many as the limit of open
// files allows.
func (w *world) connections(wanted int) int {
	w.Helper()
	const others = 500
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil { // Go has raised it
		w.Fatal(err)
	}
	if most := int(l.Cur) - others; most < wanted {
		w.Logf("only %d instead of %d connections, because the limit of open files is %d", most, wanted, l.Cur)
		return most
	}
	return wanted
}

// hold opens connections to the gateway, and writes the same bytes to each. The function that it returns closes
// them. The gateway may refuse or close some of them.
func (w *world) hold(n int, text string) (release func()) {
	w.Helper()
	var (
		mu   sync.Mutex
		all  []net.Conn
		work sync.WaitGroup
		turn = make(chan struct{}, 256)
	)
	for range n {
		turn <- struct{}{}
		work.Go(func() {
			defer func() { <-turn }()
			c, err := net.DialTimeout("tcp", strings.TrimPrefix(w.url, "http://"), healthyWithin)
			if err != nil {
				return
			}
			_ = c.SetWriteDeadline(time.Now().Add(hostileWait))
			_, _ = io.WriteString(c, text)
			mu.Lock()
			defer mu.Unlock()
			all = append(all, c)
		})
	}
	work.Wait()
	if len(all) < n/2 {
		w.Errorf("only %d of %d connections could be opened", len(all), n)
	}
	return func() {
		for _, c := range all {
			_ = c.Close()
		}
	}
}

// holdHeads opens very many connections with half a head each. Short header fields take the most memory. Other
// callers must be served while the connections are open.
func (w *world) holdHeads() {
	w.Helper()
	head := "GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
	defer w.hold(w.connections(10_000), head+strings.Repeat("a:b\r\n", 200))()
	defer w.hold(300, head+strings.Repeat("a:b\r\n", 18_000))()
	w.eventuallyHealthy("with half heads")
}

// eventuallyHealthy fails the test unless a new caller gets an answer in the usual time, after some tries.
func (w *world) eventuallyHealthy(when string) {
	w.Helper()
	var a answer
	if !waits(healthyWithin, func() bool {
		w.client.CloseIdleConnections()
		a = w.do(w.request(http.MethodGet, "/api/v1/streams", "", "reader"))
		return a.status == http.StatusOK
	}) {
		w.Errorf("%s: no healthy answer within %s; the last: %d %.300s", when, healthyWithin, a.status, a.body)
	}
}

// holdBodies sends the largest batches of several callers, and does not send their ends.
func (w *world) holdBodies() {
	w.Helper()
	const size, each = 16 << 20, 16
	for _, caller := range []string{"publisher", "operator", "approver", "tenant", "reader", "expired"} {
		head := fmt.Sprintf("POST /events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Type: application/cloudevents-batch+json\r\nContent-Length: %d\r\n\r\n[", w.tokens[caller], size)
		defer w.hold(each, head+strings.Repeat(" ", size-2))()
	}
	w.eventuallyHealthy("with slow bodies")
}

// holdTails opens many tails whose reader takes nothing, while many large events are published.
func (w *world) holdTails() {
	w.Helper()
	for _, caller := range []string{"reader", "operator", "approver", "tenant"} {
		defer w.hold(100, fmt.Sprintf("GET /api/v1/streams/events/events?from=beginning HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n\r\n", w.tokens[caller]))()
	}
	for i := range 32 {
		w.publish(fmt.Sprintf("wide-%d", i), "note", `{"text":"`+strings.Repeat("x", 512<<10)+`"}`)
	}
}

// sendWideData publishes data that takes much memory for each byte once it is decoded. The recipe wide takes
// its key from there.
func (w *world) sendWideData() {
	w.Helper()
	wide := `{"all":[` + strings.TrimSuffix(strings.Repeat("0,", 500_000), ",") + `],"bot":"bot-1"}`
	var work sync.WaitGroup
	for i := range 32 {
		work.Go(func() { w.publish(fmt.Sprintf("data-%d", i), "wide", wide) })
	}
	work.Wait()
}

// publish publishes an event. The gateway may be too busy to store it.
func (w *world) publish(id, typ, data string) answer {
	w.Helper()
	return w.do(w.request(http.MethodPost, "/events", data, "publisher", "ce-specversion", "1.0", "ce-type", typ, "ce-source", "/attacks",
		"ce-id", id, "ce-subject", "bot-42", "content-type", "application/json"))
}
