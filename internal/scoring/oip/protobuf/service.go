package protobuf

import (
	"context"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	"tidemill.dev/internal/scoring/oip"
)

// ServiceName is the protocol's name of the service.
const ServiceName = "inference.GRPCInferenceService"

// Access says which callers may use a method.
type Access int8

// The groups of callers.
const (
	Anyone    Access = iota // no token is needed
	Readers                 // callers that may read
	AllKeys                 // callers that may read all keys, because a model's name does not show its key
	Operators               // callers that may operate on all keys
)

// Method is a method of the service. Answer appends the answer to a message to the given bytes. It may
// keep nothing of the message.
type Method struct {
	Name   string
	Access Access
	Stream bool // the caller sends any number of messages, and gets one answer to each
	Answer func(ctx context.Context, message, to []byte) ([]byte, error)
}

// Service answers messages. The gateway has authorized the caller before.
type Service struct{ server *oip.Server }

// New makes a Service.
func New(server *oip.Server) *Service { return &Service{server} }

// Ready reports whether the process can answer.
func (s *Service) Ready(ctx context.Context) bool { return s.server.Ready(ctx) }

// Methods returns the methods of the service.
func (s *Service) Methods() []Method {
	return []Method{
		{Name: "ServerLive", Answer: answerLive},
		{Name: "ServerReady", Answer: s.serverReady},
		{Name: "ServerMetadata", Access: Readers, Answer: s.serverMetadata},
		{Name: "ModelReady", Access: AllKeys, Answer: s.modelReady},
		{Name: "ModelMetadata", Access: AllKeys, Answer: s.modelMetadata},
		{Name: "ModelInfer", Access: AllKeys, Answer: s.infer},
		{Name: "ModelStreamInfer", Access: AllKeys, Stream: true, Answer: s.inferStreamed},
		{Name: "RepositoryIndex", Access: AllKeys, Answer: s.index},
		{Name: "RepositoryModelLoad", Access: Operators, Answer: s.load},
		{Name: "RepositoryModelUnload", Access: Operators, Answer: s.unload},
	}
}

func answerLive(_ context.Context, _, to []byte) ([]byte, error) { return appendBool(to, 1, true), nil }

func (s *Service) serverReady(ctx context.Context, _, to []byte) ([]byte, error) {
	return appendBool(to, 1, s.server.Ready(ctx)), nil
}

func (s *Service) serverMetadata(_ context.Context, _, to []byte) ([]byte, error) {
	m := s.server.Metadata()
	to = appendText(appendText(to, 1, m.Name), 2, m.Version)
	for _, e := range m.Extensions {
		to = appendText(to, 3, e)
	}
	return to, nil
}

func (s *Service) modelReady(ctx context.Context, message, to []byte) ([]byte, error) {
	name, version, err := readModel(message)
	if err != nil {
		return nil, err
	}
	ready, err := s.server.ModelReady(ctx, name, version)
	return appendBool(to, 1, ready), err
}

// readModel reads a ModelReadyRequest or a ModelMetadataRequest.
func readModel(message []byte) (name string, version int, err error) {
	n, err := readNames(message)
	if err != nil {
		return "", 0, err
	}
	version, err = versionOf(n.second)
	return strings.Clone(n.first), version, err // the models keep the name
}

// versionOf reads a version; 0 is the champion.
func versionOf(text string) (int, error) {
	if text == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || strconv.Itoa(n) != text {
		return 0, oip.Errorf(oip.NotFound, "%.40q is not a version: a version is a number from 1", text)
	}
	return n, nil
}

func (s *Service) modelMetadata(ctx context.Context, message, to []byte) ([]byte, error) {
	name, version, err := readModel(message)
	if err != nil {
		return nil, err
	}
	m, err := s.server.ModelMetadata(ctx, name, version)
	if err != nil {
		return nil, err
	}
	to = appendText(to, 1, m.Name)
	for _, v := range m.Versions {
		to = appendText(to, 2, v)
	}
	to = appendText(to, 3, m.Platform)
	return appendTensors(appendTensors(to, 4, m.Inputs), 5, m.Outputs), nil
}

// inferStreamed answers with a ModelStreamInferResponse. An error is a part of it, so the stream goes on.
func (s *Service) inferStreamed(ctx context.Context, message, to []byte) ([]byte, error) {
	failed := error(nil)
	whole := appendNested(to, 2, func(to []byte) []byte {
		answer, err := s.infer(ctx, message, to)
		if err != nil {
			failed = err
			return to
		}
		return answer
	})
	if failed != nil {
		return appendText(to, 1, strings.ToValidUTF8(failed.Error(), "�")), nil
	}
	return whole, nil
}

// index lists the models that have a champion. The request may ask for those in memory only.
func (s *Service) index(ctx context.Context, message, to []byte) ([]byte, error) {
	f, ready := fields{rest: message}, false
	for f.next() {
		if f.number == 2 && f.kind == protowire.VarintType {
			ready = f.value != 0
		}
	}
	if err := f.end("the request"); err != nil {
		return nil, err
	}
	all, err := s.server.Index(ctx, ready)
	for _, one := range all {
		to = appendNested(to, 1, func(to []byte) []byte {
			return appendText(appendText(appendText(appendText(to, 1, one.Name), 2, one.Version), 3, one.State), 4, one.Reason)
		})
	}
	return to, err
}

// readRepository returns the model of a RepositoryModelLoadRequest. Triton's clients send the name in the
// second field, KServe's in the first.
func readRepository(message []byte) (string, error) {
	n, err := readNames(message)
	if n.second != "" {
		n.first = n.second
	}
	return strings.Clone(n.first), err // the models keep the name
}

// load waits until the champion is in memory. KServe's clients read the answer; Triton's is empty.
func (s *Service) load(ctx context.Context, message, to []byte) ([]byte, error) {
	name, err := readRepository(message)
	if err != nil {
		return nil, err
	}
	return appendBool(appendText(to, 1, name), 2, true), s.server.Load(ctx, name)
}

// unload takes a model out of memory. The next request that names it loads it again.
func (s *Service) unload(ctx context.Context, message, to []byte) ([]byte, error) {
	name, err := readRepository(message)
	if err != nil {
		return nil, err
	}
	return appendText(to, 1, name), s.server.Unload(ctx, name)
}

// appendTensors appends TensorMetadata.
func appendTensors(to []byte, number protowire.Number, all []oip.TensorMetadata) []byte {
	for _, one := range all {
		to = appendNested(to, number, func(to []byte) []byte {
			return appendShape(appendText(appendText(to, 1, one.Name), 2, one.Datatype), 3, one.Shape)
		})
	}
	return to
}
