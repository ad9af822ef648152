package agent

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"tidemill.dev"
)

// A secret does not appear in a stream, wherever the writes of the command split it.
func TestMasksAtEverySplit(t *testing.T) {
	m := newMasks([]string{"hunter2hunter", "hunter2", "key one\nkey two \r\n", `p@ss "word`, "short"})
	for in, want := range map[string]string{
		"":                                "",
		"nothing here\n":                  "nothing here\n",
		"a hunter2 b hunter2hunter c\n":   "a *** b *** c\n",
		"hunter2hunter2hunter2":           "***2***",
		"hhunter2":                        "h***",
		"hunterhunter2\n":                 "hunter***\n",
		"key one\r\nkey two\n":            "***\r\n***\n",
		"postgres://u:p%40ss%20%22word@h": "postgres://u:***@h",
		"q=p%40ss+%22word&":               "q=***&",
		`{"p":"p@ss \"word"}`:             `{"p":"***"}`,
		"short is too short":              "short is too short",
		"it ends with hunte":              "it ends with hunte",
		"it ends with hunter":             "it ends with ***",
	} {
		for i := range len(in) + 1 {
			for j := i; j <= len(in); j++ {
				s := &masker{masks: m}
				var b strings.Builder
				for _, part := range []string{in[:i], in[i:j], in[j:]} {
					b.Write(s.next([]byte(part)))
				}
				b.Write(s.rest())
				if b.String() != want {
					t.Fatalf("%q, split at %d and %d, is %q, want %q", in, i, j, b.String(), want)
				}
			}
		}
	}
}

// A command that prints its secrets leaves none of them in the log, the last lines, the reason or
// the output of its pod.
func TestSecretsAreNotInTheLog(t *testing.T) {
	g := newGateway(t)
	g.order.Plan.Secrets = map[string]string{"HF_TOKEN": "hugging-face/token", "KEY": "key/pem"}
	g.sh(`echo "Authorization: Bearer $HF_TOKEN"; printf %s "${HF_TOKEN%ghij}"; printf '%s\n' ghij; echo "$KEY"; echo "denied for $HF_TOKEN" >&2; exit 1`)
	o := g.options()
	o.Equip = func(context.Context, tidemill.Plan) (Equipment, error) {
		return Equipment{Env: []string{"HF_TOKEN=hf_abcdefghij", "KEY=-----BEGIN\nline-of-key\n-----END"}}, nil
	}
	var mu sync.Mutex
	var heard strings.Builder
	o.Echo = func(_ string, data []byte) {
		mu.Lock()
		defer mu.Unlock()
		heard.Write(data)
	}
	f := g.run(o)
	all := strings.Join(g.log(), "\n") + f.Result.LastLines + f.Reason + heard.String()
	for _, secret := range []string{"hf_abcdef", "line-of-key"} {
		if strings.Contains(all, secret) {
			t.Errorf("the log of the run has the secret %q:\n%s", secret, all)
		}
	}
	if !strings.Contains(f.Reason, "denied for ***") || !strings.Contains(f.Result.LastLines, "Authorization: Bearer ***\n") {
		t.Errorf("it ended so: %+v", f)
	}
}

// Files of a mounted Secret are secrets too, and so are the variables of a pod.
func TestSecretsOfAPodAreMasked(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"password": "correct-horse\n", "..data": "old-password"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("HF_TOKEN", "hf_abcdefghij")
	a := &attempt{o: Options{Inside: true, Token: "the-token-of-the-attempt"}}
	m := a.masksOf(&tidemill.Plan{Secrets: map[string]string{"HF_TOKEN": "a/b"}, Inside: tidemill.Inside{Volumes: []tidemill.Volume{{Secret: "db", At: dir}, {Claim: "c", At: "/c"}}}})
	s := &masker{masks: m}
	if got := string(s.next([]byte("correct-horse hf_abcdefghij the-token-of-the-attempt old-password\n"))); got != "*** *** *** old-password\n" {
		t.Error(got)
	}
}

func BenchmarkMasker(b *testing.B) {
	s := &masker{masks: newMasks([]string{"hf_abcdefghij", "correct-horse"})}
	line := []byte(strings.Repeat("step 12 loss 0.125 accuracy 0.875 here\n", 800))
	b.SetBytes(int64(len(line)))
	for b.Loop() {
		s.next(line)
	}
}
