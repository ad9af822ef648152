package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime/debug"
	"time"

	"tidemill.dev/api"
	"tidemill.dev/internal/gateway/access"
	"tidemill.dev/internal/gateway/rpc"
	"tidemill.dev/internal/scoring/infer"
	"tidemill.dev/internal/scoring/oip"
	"tidemill.dev/internal/scoring/oip/protobuf"
)

// mostMessage is the greatest size of a message: gRPC's own default, which clients expect.
const mostMessage = 4 << 20

// mostRPC is the number of open connections for gRPC.
const mostRPC = 1024

// openRPC listens for gRPC, if the options say where. It has its own port, because net/http's HTTP/2 takes
// four times the CPU of a request (docs/decisions/0019).
func (g *Gateway) openRPC(ctx context.Context) error {
	if g.opt.ListenGRPC == "" {
		return nil
	}
	if g.opt.InferenceGRPC == nil {
		return errors.New("listen for gRPC: this gateway does not score, because it has no Redis or no object store: give --redis and --store, or leave out --listen-grpc")
	}
	l, err := g.opt.Network.ListenTCP(ctx, g.opt.ListenGRPC)
	if err != nil {
		return fmt.Errorf("listen for gRPC: %w; give another address, or port 0 for a free one", err)
	}
	g.rpcListener = l
	limits := &g.opt.Limits
	o := rpc.Options{Listener: l, Connections: min(mostRPC, limits.Connections), Refused: g.metrics.refused.connections.Inc,
		Headers: limits.Headers, Message: mostMessage, Handshake: limits.ReadHeader, Idle: limits.Idle, Arrive: limits.Room,
		Services: g.rpcServices()}
	if g.certificate != nil {
		o.TLS = g.certificate.config()
	}
	g.rpc = rpc.New(o)
	return nil
}

// AddrGRPC is the address for gRPC; empty if there is none.
func (g *Gateway) AddrGRPC() string {
	if g.rpcListener == nil {
		return ""
	}
	return g.rpcListener.Addr().String()
}

// serveRPCs answers gRPC until closeRPC.
func (g *Gateway) serveRPCs() error {
	if g.rpc == nil {
		return nil
	}
	return g.rpc.Serve()
}

func (g *Gateway) closeRPC(ctx context.Context) error {
	if g.rpc == nil {
		return nil
	}
	err := g.rpc.Shutdown(ctx)
	if e := g.rpcListener.Close(); !errors.Is(e, net.ErrClosed) { // serveRPCs may never have run
		err = errors.Join(err, e)
	}
	return err
}

// rpcServices returns the services of gRPC: the Open Inference Protocol and gRPC's own health check.
func (g *Gateway) rpcServices() []rpc.Service {
	health := rpc.Service{Name: "grpc.health.v1.Health", Methods: []rpc.Method{
		g.rpcMethod("grpc.health.v1.Health", &protobuf.Method{Name: "Check", Answer: g.answerRPCHealth})}}
	inference := rpc.Service{Name: protobuf.ServiceName}
	for _, m := range g.opt.InferenceGRPC.Methods() {
		inference.Methods = append(inference.Methods, g.rpcMethod(protobuf.ServiceName, &m))
	}
	return []rpc.Service{health, inference}
}

func (g *Gateway) rpcMethod(service string, m *protobuf.Method) rpc.Method {
	measure := g.metrics.of(http.MethodPost + " /" + service + "/" + m.Name)
	return rpc.Method{Name: m.Name, Stream: m.Stream, Handle: func(call *rpc.Call) error { return g.serveRPC(m, &measure, call) }}
}

// answerRPCHealth answers gRPC's health check: 1 is SERVING, 2 is NOT_SERVING.
func (g *Gateway) answerRPCHealth(context.Context, []byte, []byte) ([]byte, error) {
	if g.checkState().Status == api.Failed {
		return []byte{1 << 3, 2}, nil
	}
	return []byte{1 << 3, 1}, nil
}

// serveRPC is the only place where requests of gRPC arrive and are measured, as serveHTTP is for HTTP.
func (g *Gateway) serveRPC(m *protobuf.Method, measure *routeMetrics, call *rpc.Call) (err error) {
	began := time.Now()
	r := &rpcRequest{g: g, method: m, call: call}
	r.budget = runBudget{g, &r.request}
	defer func() {
		if cause := recover(); cause != nil {
			g.log.Error("gateway: a handler panicked; its caller gets an error", "route", measure.route, "reason", cause, "stack", string(debug.Stack()))
			err = rpcProblem(internalFault())
		}
		measure.answered(rpc.HTTPStatus(err), time.Since(began))
		r.giveRoom()
	}()
	if err := r.admit(); err != nil {
		return err
	}
	switch {
	case m.Access == protobuf.Anyone: // an unknown caller's message is not read
		return r.answer(rpc.Message{})
	case m.Stream:
		return r.answerStream()
	}
	message, err := call.Receive(r.callerName())
	if err != nil {
		return err
	}
	defer message.Free()
	return r.answer(message)
}

// rpcRequest is one gRPC request and its state in the gateway.
type rpcRequest struct {
	request
	g      *Gateway
	method *protobuf.Method
	call   *rpc.Call
	budget runBudget
}

// admit identifies the caller, checks its rights, and takes room for the bytes that are not read yet.
func (r *rpcRequest) admit() error {
	if r.method.Access == protobuf.Anyone {
		return nil
	}
	p := r.identify()
	role := r.role()
	switch {
	case p != nil:
	case !r.caller.Has(role):
		r.g.metrics.refused.role.Inc()
		p = missingRole(r.caller.Name(), role)
	case r.method.Access != protobuf.Readers && !r.caller.AllKeys(role):
		p = forbiddenModel(role)
	}
	if p != nil {
		r.g.noteRefusal(&r.request, role, r.method.Name, p)
		return rpcProblem(p)
	}
	if r.charged > 0 { // a later message of a stream
		return nil
	}
	return r.charge(runGarbage * rpc.Window)
}

// role returns the role that the method needs.
func (r *rpcRequest) role() access.Role {
	if r.method.Access == protobuf.Operators {
		return access.Operate
	}
	return access.Read
}

// identify sets the caller. Without tokens it checks the host, as admitOpen does. Web pages cannot send
// gRPC, except by a TLS connection to a host that resolves to this machine.
func (r *rpcRequest) identify() *api.Problem {
	g := r.g
	if g.opt.Access == nil {
		if host := r.call.Header(":authority"); !isLoopback(host) {
			g.metrics.refused.host.Inc()
			return strangeHost(host)
		}
		r.caller = g.everyone
		return nil
	}
	caller, err := g.opt.Access.Caller(r.call.Context(), r.call.Header("authorization"))
	if err != nil {
		g.metrics.refused.token.Inc()
		return unidentified(err)
	}
	r.caller = caller
	return nil
}

func (r *rpcRequest) charge(n int) error {
	if p := r.g.chargeMemory(&r.request, n); p != nil {
		return rpcProblem(p)
	}
	return nil
}

// giveRoom returns the room that the request has taken.
func (r *rpcRequest) giveRoom() {
	if r.charged > 0 {
		r.g.room.give(r.callerName(), r.charged)
		r.charged = 0
	}
}

// answer answers one message. The room for a large answer is returned when the client has taken the answer.
func (r *rpcRequest) answer(message rpc.Message) error {
	if extra := runGarbage * (len(message.Bytes) - rpc.Window); extra > 0 {
		if err := r.charge(extra); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(infer.WithBudget(r.call.Context(), &r.budget), r.g.opt.Limits.Ack)
	defer cancel()
	answer, err := r.method.Answer(ctx, message.Bytes, nil)
	if err != nil {
		return rpcFailure(ctx, err)
	}
	caller, taken := r.callerName(), r.charged
	r.charged = 0
	return r.call.Send(answer, func() {
		if taken > 0 {
			r.g.room.give(caller, taken)
		}
	})
}

// answerStream answers the messages of a stream until the client ends it, the gateway closes, or no
// message comes for a while. Each message needs the caller's right again.
func (r *rpcRequest) answerStream() error {
	limits := &r.g.opt.Limits
	name := r.callerName()
	if p := r.g.rpcStreams.enter(name); p != nil {
		return rpcProblem(p)
	}
	defer r.g.rpcStreams.leave(name)
	idle := time.NewTimer(limits.Idle)
	defer idle.Stop()
	messages := make(chan received)
	// The reader ends after this function, because the library answers the client when it stops to read.
	go r.readStream(messages)
	for {
		select {
		case m := <-messages:
			switch {
			case errors.Is(m.err, io.EOF):
				return nil
			case m.err != nil:
				return m.err
			}
			if err := r.answerNext(m.message); err != nil {
				return err
			}
			idle.Reset(limits.Idle)
		case <-idle.C:
			return rpc.Error(http.StatusRequestTimeout, fmt.Sprintf("no message came for %v: open the stream again when there is one", limits.Idle))
		case <-r.g.ending:
			return rpcProblem(unavailable("the gateway closes: open the stream again"))
		}
	}
}

// received is a message of a stream, or the stream's end.
type received struct {
	message rpc.Message
	err     error
}

// readStream reads the messages of a stream.
func (r *rpcRequest) readStream(to chan<- received) {
	for {
		m, err := r.call.Next()
		select {
		case to <- received{m, err}:
		case <-r.call.Context().Done():
			m.Free()
			return
		}
		if err != nil {
			return
		}
	}
}

// answerNext answers one message of a stream.
func (r *rpcRequest) answerNext(message rpc.Message) error {
	defer message.Free()
	if err := r.admit(); err != nil {
		return err
	}
	return r.answer(message)
}

func rpcProblem(p *api.Problem) error { return rpc.Error(p.Status, p.Detail) }

// rpcFailure turns an error of the protocol into one of gRPC.
func rpcFailure(ctx context.Context, err error) error {
	status := http.StatusServiceUnavailable
	switch oip.CodeOf(err) {
	case oip.Invalid:
		status = http.StatusBadRequest
	case oip.NotFound:
		status = http.StatusNotFound
	case oip.TooLarge:
		status = http.StatusRequestEntityTooLarge
	case oip.Broken:
		status = http.StatusInternalServerError
	}
	return rpc.Error(status, err.Error())
}
