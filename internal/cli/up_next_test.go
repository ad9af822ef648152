package cli

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tidemill.dev/config"
	"tidemill.dev/internal/cli/connect"
)

// selfSigned makes a certificate for this machine, or for a name.
func selfSigned(t *testing.T, dir, name string) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	if name == "" {
		template.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	} else {
		template.DNSNames = []string{name}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	text := func(kind string, der []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	}
	return leave(t, text("CERTIFICATE", der), dir, "tls.crt"), leave(t, text("PRIVATE KEY", secret), dir, "tls.key")
}

// The next steps work with a self-signed certificate and with tokens, too.
func TestNextStepsWorkBehindALock(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cert, key := selfSigned(t, dir, "")
	access := filepath.Join(dir, "access.yaml")
	token := leave(t, ok(t, "token", "new", "me", "--role", "publish,read", "--file", access), dir, "token")
	s := startUp(t, filepath.Join(dir, "data"), "--tls-cert", cert, "--tls-key", key, "--access", access)
	eventually(t, func() bool { return strings.Contains(s.stdout.String(), "Ctrl-C stops it.") })
	_, steps, _ := strings.Cut(s.stdout.String(), "In another terminal:\n")
	steps, _, _ = strings.Cut(steps, "\n\n")
	mention(t, "the steps", steps, "export TIDEMILL_TOKEN=tm_…  # tidemill token new NAME --role publish,read --file "+access,
		"curl -i --cacert "+cert+" -H \"Authorization: Bearer $TIDEMILL_TOKEN\" -X POST https://127.0.0.1:")
	for line := range strings.Lines(steps) {
		args := shellWords(t, strings.TrimSpace(line))
		switch {
		case args[0] != "tidemill":
			continue
		case args[1] == "tail":
			args = append(args, "--from", "beginning", "--no-follow")
		}
		ok(t, append(args[1:], "--token-file", token)...)
	}
	o := call(t, "", "streams", "--url", s.URL, "--token-file", token)
	if o.code != exitFailed || !strings.Contains(o.err, "if it is yours, give --ca a file") {
		t.Errorf("nobody was told to trust it: exit %d, %s", o.code, o.err)
	}
	other, _ := selfSigned(t, t.TempDir(), "")
	if o := call(t, "", "streams", "--url", s.URL, "--ca", other); !strings.Contains(o.err, other+" (--ca, TIDEMILL_CA) has signed it") {
		t.Errorf("another was to be trusted: %s", o.err)
	}
	o = call(t, "", "streams", "--url", strings.Replace(s.URL, "127.0.0.1", "localhost", 1), "--ca", cert)
	mention(t, "by another name", o.err, "give --url with the name in the certificate")
}

func TestNextStepsNameWhatTheCertificateNames(t *testing.T) {
	t.Parallel()
	cert, key := selfSigned(t, t.TempDir(), "tidemill.example")
	u := &up{door: connect.DoorFlags{Cert: cert, Key: key}}
	u.Data = connect.DataFolder
	mention(t, "the steps", u.nextSteps(&config.Config{}, "https://127.0.0.1:8443"), "tail events --url https://tidemill.example:8443 --ca "+cert+"\n", "-X POST https://tidemill.example:8443/events")
}

// The type of the example has an effect, and it does not end a key.
func TestNextStepsPublishWhatATriggerWaitsFor(t *testing.T) {
	t.Parallel()
	for want, text := range map[string]string{
		"bot-created": "",
		"order-paid":  "triggers: {crm: {when: [{type: bot-deleted}, {type: x, where: 'EXISTS y'}, {type: tidemill.model.promoted}, {type: [new-data, order-paid]}], to: {url: 'http://127.0.0.1:9'}}}",
		"retrain":     "recipes: {intent: {when: {type: retrain}, run: {dir: ., command: [sh]}}}",
	} {
		conf, err := config.Parse("tidemill.yaml", []byte("version: 1\n"+text))
		if err != nil {
			t.Fatal(err)
		}
		u := &up{}
		u.Data = connect.DataFolder
		mention(t, "the steps", u.nextSteps(conf, "http://127.0.0.1:8080"), "tidemill publish "+want+" --subject bot-42", "ce-type: "+want+"'")
	}
}
