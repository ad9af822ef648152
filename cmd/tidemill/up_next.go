package main

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/url"
	"os"
	"strings"
)

// nextSteps are lines that work as they are, from the same folder, once a token
// is in its place where the door wants one.
func (u *up) nextSteps(door string) string {
	flags, curl, token := "", "", ""
	if u.data != dataFolder {
		flags = " --data " + u.data
	}
	if u.door.cert != "" {
		named, ca := u.door.trust(door)
		if named != door {
			door, flags = named, " --url "+named
		}
		if ca != "" {
			flags, curl = flags+" --ca "+ca, " --cacert "+ca
		}
	}
	if u.door.access != "" {
		token = "  export " + envToken + "=tm_…  # tidemill token new NAME --role publish,read --file " + u.door.access + " makes one\n"
		curl += " -H \"Authorization: Bearer $" + envToken + "\""
	}
	return token + "  tidemill tail events" + flags + "\n" +
		"  tidemill publish bot-created --subject bot-42 -d '{\"name\": \"Ada\"}'" + flags + "\n" +
		"  curl -i" + curl + " -X POST " + door + "/events -H 'ce-specversion: 1.0' -H 'ce-type: bot-created' -H 'ce-source: /crm' -H 'ce-id: 1' -H 'ce-subject: bot-43'\n"
}

// otherCA stands where only the user knows the file.
const otherCA = "FILE"

// trust is how the door is to be called, and the file of the CA to trust if the
// system does not: the certificate's own if it speaks for itself.
func (d *doorFlags) trust(door string) (named, ca string) {
	pair, err := tls.LoadX509KeyPair(d.cert, d.key)
	at, parseErr := url.Parse(door)
	if err != nil || parseErr != nil { // it has just served; it is being replaced perhaps
		return door, otherCA
	}
	if pair.Leaf.VerifyHostname(at.Hostname()) != nil && len(pair.Leaf.DNSNames) > 0 && !strings.HasPrefix(pair.Leaf.DNSNames[0], "*") {
		at.Host = net.JoinHostPort(pair.Leaf.DNSNames[0], at.Port())
	}
	between := x509.NewCertPool()
	for _, der := range pair.Certificate[1:] {
		if c, err := x509.ParseCertificate(der); err == nil {
			between.AddCert(c)
		}
	}
	if _, err := pair.Leaf.Verify(x509.VerifyOptions{Intermediates: between}); err == nil {
		return at.String(), ""
	}
	own := x509.NewCertPool()
	text, _ := os.ReadFile(d.cert) // no file is no certificate
	own.AppendCertsFromPEM(text)
	if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: own, Intermediates: between}); err == nil {
		return at.String(), d.cert
	}
	return at.String(), otherCA
}
