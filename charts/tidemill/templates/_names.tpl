{{- define "tidemill.fullname" -}}
{{- default .Release.Name .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "tidemill.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/name: tidemill
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{/* Labels of one component's pods: (dict "root" $ "component" "gateway") */}}
{{- define "tidemill.selector" -}}
app.kubernetes.io/name: tidemill
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "tidemill.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}{{ .repository }}@{{ .digest }}{{- else -}}{{ .repository }}:{{ default $.Chart.AppVersion .tag }}{{- end -}}
{{- end -}}
{{- end -}}

{{- define "tidemill.account" -}}
{{- printf "%s-%s" (default (include "tidemill.fullname" .root) .root.Values.serviceAccounts.prefix) .component -}}
{{- end -}}

{{/* The config as YAML, from config or configFile. */}}
{{- define "tidemill.config" -}}
{{- if .Values.configFile -}}
{{- $read := fromYaml .Values.configFile -}}
{{- if hasKey $read "Error" -}}{{- fail (printf "configFile is no YAML: %s" $read.Error) -}}{{- end -}}
{{- if gt (len .Values.config) 1 -}}{{- fail "config and configFile are both given: put all of it into one of them" -}}{{- end -}}
{{- toYaml $read -}}
{{- else -}}
{{- toYaml .Values.config -}}
{{- end -}}
{{- end -}}

{{/* The namespace of the objects of runs. */}}
{{- define "tidemill.runsNamespace" -}}
{{- default .Release.Namespace .Values.runs.namespace -}}
{{- end -}}

{{- define "tidemill.install" -}}
{{- (include "tidemill.config" . | fromYaml).name | default "tidemill" -}}
{{- end -}}

{{- define "tidemill.gatewayURL" -}}
{{- if .Values.gateway.tls.secret -}}https{{- else -}}http{{- end -}}://{{ include "tidemill.fullname" . }}-gateway.{{ .Release.Namespace }}.svc:{{ .Values.gateway.port }}
{{- end -}}

{{- define "tidemill.agentsAt" -}}
{{- if .Values.gateway.agentsAt -}}
{{ .Values.gateway.agentsAt }}
{{- else if .Values.gateway.tls.secret -}}
{{- fail "gateway.agentsAt is missing: with gateway.tls.secret agents need an https address whose certificate the system's CAs vouch for, such as https://tidemill.example" -}}
{{- else -}}
{{ include "tidemill.gatewayURL" . }}
{{- end -}}
{{- end -}}

{{- define "tidemill.accessSecret" -}}
{{- default (printf "%s-access" (include "tidemill.fullname" .)) .Values.access.secret -}}
{{- end -}}

{{- define "tidemill.tokensSecret" -}}
{{ include "tidemill.fullname" . }}-tokens
{{- end -}}

{{- define "tidemill.makesTokens" -}}
{{- if and .Values.access.generate (not .Values.access.secret) -}}yes{{- end -}}
{{- end -}}

{{- define "tidemill.runSecret" -}}
{{- default (printf "%s-run-secret" (include "tidemill.fullname" .)) .Values.runSecret.secret -}}
{{- end -}}

{{/* The Secret and key of a token: (dict "root" $ "said" .Values.test.tokenSecret "made" "operator") as JSON; empty if there is none. */}}
{{- define "tidemill.tokenFrom" -}}
{{- if .said.name -}}
{{- dict "name" .said.name "key" .said.key | toJson -}}
{{- else if include "tidemill.makesTokens" .root -}}
{{- dict "name" (include "tidemill.tokensSecret" .root) "key" .made | toJson -}}
{{- end -}}
{{- end -}}

{{/* Not empty if a scorer has labels or watches for drift, or a recipe has a trial, so that the install needs an observer. */}}
{{- define "tidemill.observes" -}}
{{- $config := include "tidemill.config" . | fromYaml -}}
{{- range $name, $scorer := $config.scorers -}}
{{- if or $scorer.labels (hasKey $scorer "drift") -}}yes{{- end -}}
{{- end -}}
{{- range $name, $recipe := $config.recipes -}}
{{- if $recipe.trial -}}yes{{- end -}}
{{- end -}}
{{- end -}}
