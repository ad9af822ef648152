//go:build slow && linux

package attacks

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

const (
	grpcConnections = 32
	grpcStreams     = 100
	grpcMessage     = 4<<20 - 1 // announced bytes of each message
	grpcPart        = 16 << 10  // bytes of a frame
)

// Messages that never end take little memory, with a token and without one. Other callers are answered.
func TestHostileGRPC(t *testing.T) {
	for name, a := range map[string]struct{ method, token string }{
		"messages without a token":           {"ModelInfer", ""},
		"messages without the right":         {"ModelInfer", "publisher"},
		"messages that never end":            {"ModelInfer", "reader"},
		"streams that never end":             {"ModelStreamInfer", "reader"},
		"probes with messages of a stranger": {"ServerLive", ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := openWorld(t, nil, "--listen-grpc", "127.0.0.1:0")
			w.healthy("at rest")
			w.within(name, func() {
				release := w.holdMessages(a.method, a.token)
				defer release()
				w.healthy(name)
				w.serverIsLive()
			})
		})
	}
}

// holdMessages opens many streams, and sends as much of a message on each as the server allows. The function that
// it returns ends them.
func (w *world) holdMessages(method, token string) (release func()) {
	w.Helper()
	var all []net.Conn
	var work sync.WaitGroup
	for range grpcConnections {
		c, err := net.DialTimeout("tcp", w.grpc, healthyWithin)
		if err != nil {
			w.Fatal(err)
		}
		all = append(all, c)
		work.Go(func() { w.pump(c, method, token) })
	}
	time.Sleep(5 * time.Second) // the attack goes on for a while
	return func() {
		for _, c := range all {
			_ = c.Close()
		}
		work.Wait()
	}
}

// pump opens streams on one connection, and sends frames until the connection ends.
func (w *world) pump(c net.Conn, method, token string) {
	if _, err := c.Write([]byte(http2.ClientPreface)); err != nil {
		return
	}
	f := http2.NewFramer(c, c)
	if f.WriteSettings() != nil {
		return
	}
	var head bytes.Buffer
	e := hpack.NewEncoder(&head)
	var mu sync.Mutex // guards the framer's writes
	room := map[uint32]int{}
	begin := func(id uint32) bool {
		head.Reset()
		for _, h := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":path", "/inference.GRPCInferenceService/" + method}, {":authority", w.grpc},
			{"content-type", "application/grpc"}, {"te", "trailers"}, {"authorization", "Bearer " + w.tokens[token]}} {
			if h[0] != "authorization" || token != "" {
				_ = e.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]}) // a buffer takes all
			}
		}
		first := make([]byte, 5, grpcPart)
		binary.BigEndian.PutUint32(first[1:], grpcMessage)
		room[id] = 64<<10 - grpcPart
		return f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: head.Bytes(), EndHeaders: true}) == nil && f.WriteData(id, false, first[:grpcPart]) == nil
	}
	for i := range grpcStreams {
		if !begin(uint32(2*i + 1)) {
			return
		}
	}
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			return
		}
		mu.Lock()
		switch frame := frame.(type) {
		case *http2.PingFrame:
			err = f.WritePing(true, frame.Data)
		case *http2.WindowUpdateFrame:
			room[frame.StreamID] += int(frame.Increment)
		case *http2.SettingsFrame:
			if !frame.IsAck() {
				err = f.WriteSettingsAck()
			}
		}
		for id, n := range room {
			for ; id != 0 && n >= grpcPart && err == nil; n -= grpcPart {
				err = f.WriteData(id, false, make([]byte, grpcPart))
			}
			room[id] = n
		}
		mu.Unlock()
		if err != nil {
			return
		}
	}
}

// serverIsLive asks for gRPC's own health over a new connection.
func (w *world) serverIsLive() {
	w.Helper()
	c, err := net.DialTimeout("tcp", w.grpc, healthyWithin)
	if err != nil {
		w.Error(err)
		return
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(healthyWithin))
	fmt.Fprint(c, http2.ClientPreface)
	f := http2.NewFramer(c, c)
	if err := f.WriteSettings(); err != nil {
		w.Error(err)
		return
	}
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			w.Errorf("a new connection gets no settings: %v", err)
			return
		}
		if _, ok := frame.(*http2.SettingsFrame); ok {
			return
		}
	}
}
