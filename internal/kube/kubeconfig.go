package kube

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/tools/clientcmd/api/latest"
)

// kubeconfig is what a file's current context says. client-go's own package for
// that brings flags, prompts and the merging of files, none of which a process
// in a cluster has a use for.
type kubeconfig struct {
	dir     string // that relative paths in it start from
	context api.Context
	cluster api.Cluster
	user    api.AuthInfo
}

func readKubeconfig(path string) (*kubeconfig, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig: %w", err)
	}
	all := api.NewConfig()
	if err := runtime.DecodeInto(latest.Codec, text, all); err != nil {
		return nil, fmt.Errorf("read the kubeconfig %s: %w", path, err)
	}
	k, err := current(all)
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig %s: %w", path, err)
	}
	k.dir = filepath.Dir(path)
	return k, nil
}

// current finds what the current context names.
func current(all *api.Config) (*kubeconfig, error) {
	if all.CurrentContext == "" {
		return nil, errors.New("it has no current-context: choose one with kubectl config use-context")
	}
	context := all.Contexts[all.CurrentContext]
	if context == nil {
		return nil, fmt.Errorf("it has no context %q, which its current-context names", all.CurrentContext)
	}
	cluster := all.Clusters[context.Cluster]
	if cluster == nil || cluster.Server == "" {
		return nil, fmt.Errorf("it has no server for the cluster %q, which its context %q names", context.Cluster, all.CurrentContext)
	}
	k := &kubeconfig{context: *context, cluster: *cluster}
	if user := all.AuthInfos[context.AuthInfo]; user != nil {
		k.user = *user
	} else if context.AuthInfo != "" {
		return nil, fmt.Errorf("it has no user %q, whom its context %q names", context.AuthInfo, all.CurrentContext)
	}
	if k.user.AuthProvider != nil {
		return nil, fmt.Errorf("its user %q has an auth-provider, which Kubernetes has given up: use exec, a token or a certificate", context.AuthInfo)
	}
	return k, nil
}

// server is how the API server is spoken to.
func (k *kubeconfig) server() (*rest.Config, error) {
	u := k.user
	c := &rest.Config{Host: k.cluster.Server, DisableCompression: k.cluster.DisableCompression,
		Username: u.Username, Password: u.Password, BearerToken: u.Token, BearerTokenFile: k.path(u.TokenFile), ExecProvider: u.Exec,
		Impersonate: rest.ImpersonationConfig{UserName: u.Impersonate, UID: u.ImpersonateUID, Groups: u.ImpersonateGroups, Extra: u.ImpersonateUserExtra},
		TLSClientConfig: rest.TLSClientConfig{Insecure: k.cluster.InsecureSkipTLSVerify, ServerName: k.cluster.TLSServerName,
			CAFile: k.path(k.cluster.CertificateAuthority), CAData: k.cluster.CertificateAuthorityData,
			CertFile: k.path(u.ClientCertificate), CertData: u.ClientCertificateData, KeyFile: k.path(u.ClientKey), KeyData: u.ClientKeyData}}
	if u.Exec != nil {
		u.Exec.InteractiveMode = api.NeverExecInteractiveMode // nobody is there to be asked
	}
	if k.cluster.ProxyURL != "" {
		proxy, err := url.Parse(k.cluster.ProxyURL)
		if err != nil {
			return nil, fmt.Errorf("read the proxy-url of the kubeconfig: %w", err)
		}
		c.Proxy = http.ProxyURL(proxy)
	}
	return c, nil
}

// path is a file that the kubeconfig names, which lies beside it unless it is
// absolute.
func (k *kubeconfig) path(name string) string {
	if name == "" || filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(k.dir, name)
}
