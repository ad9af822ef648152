{{/* The arguments of every process: the addresses of Kafka and Redis, and the path of the config. */}}
{{- define "tidemill.reach" -}}
- --config=/etc/tidemill/config
- --data=/tmp/tidemill
- --namespace={{ .Release.Namespace }}
- --withhold={{ include "tidemill.withheld" . }}
{{- with .Values.kafka }}
- --kafka={{ .address }}
{{- if .tls.enabled }}
- --kafka-tls
{{- with .tls.serverName }}
- --kafka-server-name={{ . }}
{{- end }}
{{- if .tls.secret }}
{{- with .tls.caKey }}
- --kafka-ca=/etc/tidemill/kafka-tls/{{ . }}
{{- end }}
{{- with .tls.certKey }}
- --kafka-cert=/etc/tidemill/kafka-tls/{{ . }}
{{- end }}
{{- with .tls.keyKey }}
- --kafka-key=/etc/tidemill/kafka-tls/{{ . }}
{{- end }}
{{- end }}
{{- end }}
{{- if .sasl.mechanism }}
- --kafka-sasl={{ .sasl.mechanism }}
- --kafka-user={{ .sasl.user }}
- --kafka-password-file=/etc/tidemill/kafka-sasl/{{ .sasl.passwordKey }}
{{- end }}
{{- end }}
{{- with .Values.redis }}
- --redis={{ .address }}
{{- if .tls.enabled }}
- --redis-tls
{{- if .tls.secret }}
- --redis-ca=/etc/tidemill/redis-tls/{{ .tls.caKey }}
{{- end }}
{{- end }}
{{- with .user }}
- --redis-user={{ . }}
{{- end }}
{{- if .secret }}
- --redis-password-file=/etc/tidemill/redis/{{ .passwordKey }}
{{- end }}
{{- end }}
- --log={{ .Values.log }}
{{- end -}}

{{- define "tidemill.functionsAt" -}}
{{- if .Values.functions.knative -}}
knative
{{- else -}}
http://{{ include "tidemill.fullname" . }}-{function}.{{ .Release.Namespace }}.svc:8080
{{- end -}}
{{- end -}}

{{/* Running processes do not see a change of these Secrets, so the next helm upgrade restarts the pods. Processes read the other
     Secrets again when they change. */}}
{{- define "tidemill.checksums" -}}
{{- $data := dict -}}
{{- range $name := list .Values.store.secret .Values.runSecret.secret -}}
{{- if $name -}}
{{- $found := lookup "v1" "Secret" $.Release.Namespace $name -}}
{{- if $found -}}{{- $_ := set $data $name $found.data -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- if $data -}}
checksum/secrets: {{ toJson $data | sha256sum }}
{{- end -}}
{{- end -}}

{{/*
A pod of ours: (dict "root" $ "component" NAME "args" (list …) "resources" … "pod" …) and, if needed,
"token" (it calls the API server), "launches" (it makes Jobs, and passes the gateway's address to agents), "store", "access", "tls", "runSecret", "models", "cacheSize", "grace", "knative".
*/}}
{{- define "tidemill.pod" -}}
{{- $root := .root -}}
{{- $v := $root.Values -}}
{{- $pod := default dict .pod -}}
{{- $all := $v.pods -}}
{{- $plain := or (not .knative) $v.functions.podSpecFeatures -}}
metadata:
  labels:
    {{- include "tidemill.selector" . | nindent 4 }}
    {{- with merge (dict) (default dict $pod.labels) $all.labels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- $sums := include "tidemill.checksums" $root }}
  {{- $annotations := merge (dict) (default dict .annotations) (default dict $pod.annotations) $all.annotations }}
  {{- if or $sums $annotations }}
  annotations:
    {{- with $sums }}
    {{- . | nindent 4 }}
    {{- end }}
    {{- with $annotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- end }}
spec:
  {{- if .knative }}
  containerConcurrency: {{ $v.functions.containerConcurrency }}
  timeoutSeconds: {{ $v.functions.timeoutSeconds }}
  {{- end }}
  serviceAccountName: {{ include "tidemill.account" (dict "root" $root "component" .component) }}
  {{- if not .token }}
  automountServiceAccountToken: false
  {{- else if not .knative }}
  automountServiceAccountToken: true
  {{- end }}
  enableServiceLinks: false
  {{- with $v.image.pullSecrets }}
  imagePullSecrets:
    {{- range . }}
    - name: {{ . }}
    {{- end }}
  {{- end }}
  {{- if not .knative }}
  terminationGracePeriodSeconds: 30
  securityContext:
    runAsNonRoot: true
    runAsUser: {{ $all.user }}
    runAsGroup: {{ $all.user }}
    fsGroup: {{ $all.user }}
    seccompProfile: {type: {{ $all.seccompProfile }}}
  {{- end }}
  {{- if $plain }}
  {{- with $v.gpuNodeLabels }}
  affinity:
    nodeAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
        nodeSelectorTerms:
          - matchExpressions:
              {{- range . }}
              - {key: {{ . }}, operator: DoesNotExist}
              {{- end }}
  {{- end }}
  {{- with default $all.priorityClassName $pod.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with default $all.nodeSelector $pod.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with default $all.tolerations $pod.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  topologySpreadConstraints:
    - maxSkew: 1
      topologyKey: kubernetes.io/hostname
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- include "tidemill.selector" . | nindent 10 }}
  {{- end }}
  containers:
    - name: tidemill
      image: {{ include "tidemill.image" $root }}
      imagePullPolicy: {{ $v.image.pullPolicy }}
      args:
        {{- range .args }}
        - {{ . | quote }}
        {{- end }}
        {{- include "tidemill.reach" $root | nindent 8 }}
        {{- if .store }}
        - --store={{ $v.store.url }}
        {{- end }}
        {{- if .token }}
        - --kubernetes
        {{- end }}
        {{- if .launches }}
        {{- with $v.runs.namespace }}
        - --runs-namespace={{ . }}
        {{- end }}
        - --agents-at={{ include "tidemill.agentsAt" $root }}
        - --image={{ include "tidemill.image" $root }}
        {{- end }}
        {{- if .runSecret }}
        - --run-secret=/etc/tidemill/run-secret/run-secret
        {{- end }}
      {{- with concat (default list .env) (ternary $v.store.env list (default false .store)) $all.extraEnv (default list $pod.extraEnv) }}
      env:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- $from := concat $all.extraEnvFrom (default list $pod.extraEnvFrom) }}
      {{- with ternary $v.store.secret "" (default false .store) }}
      {{- $from = prepend $from (dict "secretRef" (dict "name" .)) }}
      {{- end }}
      {{- with $from }}
      envFrom:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      ports:
        - name: {{ ternary "http1" "http" (default false .knative) }}
          containerPort: 8080
        {{- if and (eq .component "gateway") $v.gateway.grpcPort }}
        - name: grpc
          containerPort: 8081
        {{- end }}
      {{- $scheme := ternary "HTTPS" "HTTP" (and (eq .component "gateway") (ne $v.gateway.tls.secret "")) }}
      {{- if .knative }}
      readinessProbe:
        httpGet: {path: /readyz}
        periodSeconds: 1
        failureThreshold: 3
      livenessProbe:
        httpGet: {path: /healthz}
        periodSeconds: 10
      {{- else }}
      startupProbe:
        httpGet: {path: /healthz, port: http, scheme: {{ $scheme }}}
        periodSeconds: 1
        failureThreshold: 300
      readinessProbe:
        httpGet: {path: /readyz, port: http, scheme: {{ $scheme }}}
        periodSeconds: 2
        timeoutSeconds: 5
        failureThreshold: 2
      livenessProbe:
        httpGet: {path: /healthz, port: http, scheme: {{ $scheme }}}
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: 6
      {{- end }}
      resources:
        {{- toYaml .resources | nindent 8 }}
      securityContext:
        runAsNonRoot: true
        runAsUser: {{ $all.user }}
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities: {drop: [ALL]}
        seccompProfile: {type: {{ $all.seccompProfile }}}
      volumeMounts:
        - {name: config, mountPath: /etc/tidemill/config, readOnly: true}
        - {name: tmp, mountPath: /tmp}
        {{- if and $v.kafka.tls.enabled $v.kafka.tls.secret }}
        - {name: kafka-tls, mountPath: /etc/tidemill/kafka-tls, readOnly: true}
        {{- end }}
        {{- if $v.kafka.sasl.mechanism }}
        - {name: kafka-sasl, mountPath: /etc/tidemill/kafka-sasl, readOnly: true}
        {{- end }}
        {{- if and $v.redis.tls.enabled $v.redis.tls.secret }}
        - {name: redis-tls, mountPath: /etc/tidemill/redis-tls, readOnly: true}
        {{- end }}
        {{- if $v.redis.secret }}
        - {name: redis, mountPath: /etc/tidemill/redis, readOnly: true}
        {{- end }}
        {{- if .runSecret }}
        - {name: run-secret, mountPath: /etc/tidemill/run-secret, readOnly: true}
        {{- end }}
        {{- if .access }}
        - {name: access, mountPath: /etc/tidemill/access, readOnly: true}
        {{- end }}
        {{- if .tls }}
        - {name: tls, mountPath: /etc/tidemill/tls, readOnly: true}
        {{- end }}
        {{- if .models }}
        - {name: models, mountPath: /var/cache/tidemill}
        {{- end }}
        {{- with concat $all.extraVolumeMounts (default list $pod.extraVolumeMounts) }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    - name: config
      configMap: {name: {{ include "tidemill.fullname" $root }}-config}
    - name: tmp
      emptyDir: {}
    {{- if and $v.kafka.tls.enabled $v.kafka.tls.secret }}
    - name: kafka-tls
      secret: {secretName: {{ $v.kafka.tls.secret }}}
    {{- end }}
    {{- if $v.kafka.sasl.mechanism }}
    - name: kafka-sasl
      secret: {secretName: {{ $v.kafka.sasl.secret }}}
    {{- end }}
    {{- if and $v.redis.tls.enabled $v.redis.tls.secret }}
    - name: redis-tls
      secret: {secretName: {{ $v.redis.tls.secret }}}
    {{- end }}
    {{- if $v.redis.secret }}
    - name: redis
      secret: {secretName: {{ $v.redis.secret }}}
    {{- end }}
    {{- if .runSecret }}
    - name: run-secret
      secret: {secretName: {{ include "tidemill.runSecret" $root }}}
    {{- end }}
    {{- if .access }}
    - name: access
      secret: {secretName: {{ include "tidemill.accessSecret" $root }}}
    {{- end }}
    {{- if .tls }}
    - name: tls
      secret: {secretName: {{ $v.gateway.tls.secret }}}
    {{- end }}
    {{- if .models }}
    - name: models
      emptyDir: {sizeLimit: {{ default $v.scorers.cacheSize .cacheSize }}}
    {{- end }}
    {{- with concat $all.extraVolumes (default list $pod.extraVolumes) }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}
