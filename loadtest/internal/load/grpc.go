package load

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
)

// rpcConn is a connection of gRPC. Its messages are encoded already.
type rpcConn struct {
	*grpc.ClientConn
	method string
	until  atomic.Int64 // deadline, in nanoseconds since 1970
}

func dialGRPC(t Task) (*rpcConn, error) {
	c, err := grpc.NewClient("passthrough:///"+t.Addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("connect to the server by gRPC: %w", err)
	}
	return &rpcConn{ClientConn: c, method: t.Path}, nil
}

// SetDeadline limits the requests that begin later.
func (c *rpcConn) SetDeadline(t time.Time) error {
	c.until.Store(t.UnixNano())
	return nil
}

func (c *rpcConn) post(r *request) error {
	_, err := c.call(r.bytes)
	return err
}

func (c *rpcConn) call(message []byte) (answer []byte, err error) {
	ctx, cancel := context.WithDeadline(context.Background(), time.Unix(0, c.until.Load()))
	defer cancel()
	err = c.Invoke(ctx, c.method, &message, &answer, grpc.ForceCodecV2(encoded{}))
	return answer, err
}

// CallGRPC sends one encoded message over a new connection, and returns the answer.
func CallGRPC(addr, method string, message []byte) (answer []byte, err error) {
	c, err := dialGRPC(Task{Addr: addr, Path: method})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(extraTime)); err != nil {
		return nil, err
	}
	return c.call(message)
}

// encoded passes messages on as they are.
type encoded struct{}

func (encoded) Name() string { return "proto" }

func (encoded) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(*v.(*[]byte))}, nil
}

func (encoded) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}
