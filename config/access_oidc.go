package config

import (
	"net"
	"net/url"
	"strings"

	"go.yaml.in/yaml/v3"
)

// defaultNameClaim is the one that an issuer never gives to another.
const defaultNameClaim = "sub"

func (a *Access) readOIDC(v value) {
	if isNull(v.node) {
		return // all beneath is commented out
	}
	o := &OIDC{Name: defaultNameClaim}
	a.OIDC = o
	given := v.given(
		field{"issuer", o.readIssuer},
		field{"audience", func(v value) { o.Audience, _ = v.text() }},
		field{"name", func(v value) { o.Name, _ = v.text() }},
		field{"roles", o.readRoles},
	)
	v.require(v.node, given, "issuer", "write the issuer's URL, as its tokens name it")
	v.require(v.node, given, "audience", "write what the issuer's tokens for this door have in aud; without it a token for any other program would do")
	v.require(v.node, given, "roles", "without it a JWT may do nothing: write a list such as [{claim: groups, value: ml-ops, role: operate}]")
}

// readIssuer wants TLS, for whoever can change the issuer's answers on their
// way can open the door.
func (o *OIDC) readIssuer(v value) {
	text, ok := v.text()
	if !ok {
		return
	}
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http":
		v.problem("%s is not a URL; write it like https://id.example", show(text))
	case u.RawQuery != "" || u.Fragment != "" || u.User != nil:
		v.problem("%s has more than a host and a path; write the issuer as its tokens name it", show(text))
	case u.Scheme == "http" && !isLoopback(u.Hostname()):
		v.problem("%s is not https; without TLS anyone on the way could make keys of their own (http does for loopback)", show(text))
	default:
		o.Issuer = text
	}
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

func (o *OIDC) readRoles(v value) {
	items := v.items()
	if v.node.Kind == yaml.SequenceNode && len(items) == 0 {
		v.problem("is an empty list; without a role a JWT may do nothing")
	}
	for _, item := range items {
		var c ClaimRights
		c.read(item)
		o.Roles = append(o.Roles, c)
	}
}

func (c *ClaimRights) read(v value) {
	given := v.given(append([]field{
		{"claim", func(v value) { c.Claim, _ = v.text() }},
		{"value", func(v value) { c.Value, _ = v.text() }},
	}, c.Rights.fields()...)...)
	v.require(v.node, given, "claim", "name the claim that gives the role")
	v.require(v.node, given, "value", "say what the claim must be, or hold")
	v.require(v.node, given, "role", "write one or more of "+strings.Join(AccessRoles(), ", "))
}
