//go:build unix

package platform

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protowire"
)

// childOfBenchmark is set in the process that serves a benchmark, so that the client's CPU is not counted.
const childOfBenchmark = "TIDEMILL_TEST_SERVES_A_BENCHMARK"

// wideModel takes 512 numbers and answers with 20 probabilities.
func wideModel() []byte {
	var raw []byte
	for i := range 512 * 20 {
		raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(float32(i%7)/100))
	}
	shape := func(columns int) protoMessage {
		return field(2, field(1, join(number(1, 1), field(2, join(field(1, text(2, "n")), field(1, number(1, columns)))))))
	}
	graph := join(field(1, onnxNode("MatMul", "sums", "x", "w")), field(1, onnxNode("Softmax", "likely", "sums")), text(2, "g"),
		field(5, join(number(1, 512), number(1, 20), number(2, 1), text(8, "w"), field(9, raw))),
		field(11, join(text(1, "x"), shape(512))), field(12, join(text(1, "likely"), shape(20))))
	return join(number(1, 8), field(7, graph), field(8, join(text(1, ""), number(2, 13))))
}

// TestServesABenchmark is the server of BenchmarkAnswers, on one core and with tokens.
func TestServesABenchmark(t *testing.T) {
	if os.Getenv(childOfBenchmark) == "" {
		t.Skip("only in the child of a benchmark")
	}
	w := newScoringWorld(t, "version: 1\n")
	access := filepath.Join(t.TempDir(), "access.yaml")
	w.must(os.WriteFile(access, []byte("version: 1\ntokens:\n  bench: {hash: \""+os.Getenv(childOfBenchmark)+"\", role: read}\n"), 0o600))
	g, err := w.Gateway(t.Context(), GatewayOptions{Listen: "127.0.0.1:0", ListenGRPC: "127.0.0.1:0", AccessFile: access})
	w.must(err)
	w.promoteModel("wide", 1, 0, wideModel())
	served := make(chan error, 1)
	go func() { served <- g.Serve(context.Background()) }()
	fmt.Printf("serving %s %s\n", g.Addr(), g.AddrGRPC())
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		fmt.Printf("cpu %d\n", cpuOfProcess(t))
	}
	w.must(g.Close(context.Background()))
	w.must(<-served)
}

type benchedServer struct {
	http, grpc string
	in         io.Writer
	out        *bufio.Scanner
}

// line returns the next line of the child that begins with a word.
func (s *benchedServer) line(b *testing.B, word string) []string {
	for s.out.Scan() {
		if all := strings.Fields(s.out.Text()); len(all) > 0 && all[0] == word {
			return all[1:]
		}
	}
	b.Fatal("the server has ended")
	return nil
}

func (s *benchedServer) cpu(b *testing.B) time.Duration {
	_, _ = io.WriteString(s.in, "cpu\n")
	n, err := strconv.ParseInt(s.line(b, "cpu")[0], 10, 64)
	if err != nil {
		b.Fatal(err)
	}
	return time.Duration(n)
}

func serveBenchmark(b *testing.B) *benchedServer {
	cmd := exec.CommandContext(b.Context(), os.Args[0], "-test.run=^TestServesABenchmark$", "-test.v")
	cmd.Env = append(os.Environ(), childOfBenchmark+"="+hashOfToken("tm_bench"), "GOMAXPROCS=1")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	s := &benchedServer{in: in, out: bufio.NewScanner(out)}
	at := s.line(b, "serving")
	s.http, s.grpc = at[0], at[1]
	b.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	return s
}

// BenchmarkAnswers is the CPU of the whole server for a request with 512 numbers, by each transport. The
// transports take turns, because a machine's speed changes.
func BenchmarkAnswers(b *testing.B) {
	s := serveBenchmark(b)
	row := make([]float32, 512)
	for i := range row {
		row[i] = float32(i%13)/7 - 0.9
	}
	raw := rawFloats(row...)
	data, _ := json.Marshal(row)
	textual := fmt.Sprintf(`{"inputs":[{"name":"x","shape":[1,512],"datatype":"FP32","data":%s}]}`, data)
	head := fmt.Sprintf(`{"inputs":[{"name":"x","shape":[1,512],"datatype":"FP32","parameters":{"binary_data_size":%d}}],"parameters":{"binary_data_output":true}}`, len(raw))
	post := func(body []byte, header string) func() error {
		client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 8}}
		return func() error {
			req, err := http.NewRequest(http.MethodPost, "http://"+s.http+"/v2/models/wide/infer", bytes.NewReader(body))
			if err != nil {
				return err
			}
			req.Header.Set("Authorization", "Bearer tm_bench")
			if header != "" {
				req.Header.Set("Inference-Header-Content-Length", header)
			}
			res, err := client.Do(req)
			if err != nil {
				return err
			}
			defer res.Body.Close()
			if answer, err := io.ReadAll(res.Body); err != nil || res.StatusCode != http.StatusOK {
				return fmt.Errorf("%s %s %w", res.Status, answer, err)
			}
			return nil
		}
	}
	conn, err := grpc.NewClient("passthrough:///"+s.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithPerRPCCredentials(benchToken{}))
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	invoke := func(message protoMessage) func() error {
		return func() error {
			var answer protoMessage
			return conn.Invoke(b.Context(), "/inference.GRPCInferenceService/ModelInfer", &message, &answer, grpc.ForceCodecV2(plainCodec{}))
		}
	}
	shape := protowire.AppendVarint([]byte{1}, 512)
	x := join(text(1, "x"), text(2, "FP32"), field(3, shape))
	kinds := []struct {
		name string
		ask  func() error
	}{
		{"grpc-raw", invoke(join(text(1, "wide"), field(5, x), field(7, raw)))},
		{"grpc-typed", invoke(join(text(1, "wide"), field(5, join(x, field(5, field(6, raw))))))},
		{"http-json", post([]byte(textual), "")},
		{"http-binary", post(slices.Concat([]byte(head), raw), strconv.Itoa(len(head)))},
	}
	const askers, part = 8, 4000
	var all [4][]float64
	for range b.N {
		for i, kind := range kinds {
			before := s.cpu(b)
			var running sync.WaitGroup
			for range askers {
				running.Go(func() {
					for range part / askers {
						if err := kind.ask(); err != nil {
							b.Errorf("%s: %v", kind.name, err)
							return
						}
					}
				})
			}
			running.Wait()
			all[i] = append(all[i], float64(s.cpu(b)-before)/part/1e3)
		}
	}
	for i, kind := range kinds {
		slices.Sort(all[i])
		b.ReportMetric(all[i][len(all[i])/2], kind.name+"-µs")
	}
}

type benchToken struct{}

func (benchToken) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer tm_bench"}, nil
}

func (benchToken) RequireTransportSecurity() bool { return false }

func hashOfToken(token string) string {
	sum := sha256.Sum256([]byte(token))
	return "sha256:" + hex.EncodeToString(sum[:])
}

func cpuOfProcess(t testing.TB) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
