{{- define "plainsql.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- define "plainsql.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}
{{- else if contains (include "plainsql.name" .) .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "plainsql.name" .) | trunc 50 | trimSuffix "-" }}
{{- end -}}
{{- end }}

{{/* Labels of an object. Takes (dict "root" $ "component" "data"); the component may be "". */}}
{{- define "plainsql.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
app.kubernetes.io/part-of: plainsql
{{ include "plainsql.selector" . }}
{{- end }}

{{- define "plainsql.selector" -}}
app.kubernetes.io/name: {{ include "plainsql.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end }}

{{- define "plainsql.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end }}

{{- define "plainsql.operatorImage" -}}
{{- $own := .Values.operator.image -}}
{{- $repository := $own.repository | default .Values.image.repository -}}
{{- if $own.digest -}}
{{ $repository }}@{{ $own.digest }}
{{- else -}}
{{ $repository }}:{{ $own.tag | default (printf "%s-ops" (.Values.image.tag | default .Chart.AppVersion)) }}
{{- end -}}
{{- end }}

{{- define "plainsql.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "plainsql.fullname" .) }}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" }}
{{- end -}}
{{- end }}

{{- define "plainsql.host" -}}
{{- (urlParse .).host | splitList ":" | first }}
{{- end }}

{{/* The port of a plane's service. Takes (dict "root" $ "plane" "data"). */}}
{{- define "plainsql.servicePort" -}}
{{- (get .root.Values .plane).service.port | default (.root.Values.tls.existingSecret | empty | ternary 80 443) }}
{{- end }}

{{- define "plainsql.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- define "plainsql.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{/* The environment of a container. Takes (dict "root" $ "plane" "data" "dsn" "data"). */}}
{{- define "plainsql.environment" -}}
{{- $values := .root.Values -}}
- name: PLAINSQL_DIRECTORY_DSN
  valueFrom:
    secretKeyRef:
      name: {{ $values.directory.existingSecret }}
      key: {{ get $values.directory.keys .dsn }}
- name: PLAINSQL_DATA_URL
  value: {{ $values.data.url | quote }}
- name: PLAINSQL_CONTROL_URL
  value: {{ $values.control.url | quote }}
- name: PLAINSQL_DATA_HOST
  value: "0.0.0.0"
- name: PLAINSQL_CONTROL_HOST
  value: "0.0.0.0"
{{- if eq .plane "data" }}
- name: PLAINSQL_WORKERS
  value: {{ $values.data.workers | quote }}
{{- end }}
{{- if and $values.metrics.enabled (ne .plane "operator") }}
- name: PLAINSQL_METRICS_HOST
  value: "0.0.0.0"
- name: {{ eq .plane "data" | ternary "PLAINSQL_METRICS_PORT" "PLAINSQL_CONTROL_METRICS_PORT" }}
  value: "9400"
{{- end }}
{{- with $values.redis.existingSecret }}
- name: PLAINSQL_REDIS_URL
  valueFrom:
    secretKeyRef:
      name: {{ . }}
      key: {{ $values.redis.key }}
{{- end }}
{{- with $values.secretsKeys.existingSecret }}
- name: PLAINSQL_SECRETS_KEYS
  valueFrom:
    secretKeyRef:
      name: {{ . }}
      key: {{ $values.secretsKeys.key }}
{{- end }}
{{- if and $values.tls.existingSecret (ne .plane "operator") }}
- name: PLAINSQL_TLS_CERT_FILE
  value: /etc/plainsql/tls/tls.crt
- name: PLAINSQL_TLS_KEY_FILE
  value: /etc/plainsql/tls/tls.key
{{- end }}
{{- range $name, $value := merge (dict) (get $values .plane).settings $values.settings }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end }}

{{/* Files of a plane: its own certificate for the cells, and no other plane's. The operator has that of the control
plane, and serves nothing. Takes (dict "root" $ "plane" "data"). */}}
{{- define "plainsql.volumes" -}}
{{- $values := .root.Values -}}
{{- $serves := ne .plane "operator" -}}
{{- $login := $serves | ternary .plane "control" -}}
- name: cells
  secret:
    secretName: {{ $values.cells.existingSecret }}
    defaultMode: 0400
    items:
      - key: {{ $values.cells.keys.ca }}
        path: ca.crt
      - key: {{ get $values.cells.keys (printf "%sCertificate" $login) }}
        path: me.crt
      - key: {{ get $values.cells.keys (printf "%sKey" $login) }}
        path: me.key
{{- if and $serves $values.tls.existingSecret }}
- name: tls
  secret:
    secretName: {{ $values.tls.existingSecret }}
    defaultMode: 0400
{{- end }}
{{- with include "plainsql.directoryVolume" .root }}
{{ . }}
{{- end }}
- name: tmp
  emptyDir:
    medium: Memory
    sizeLimit: 16Mi
{{- end }}

{{/* The authority of the directory's certificate, or nothing. */}}
{{- define "plainsql.directoryVolume" -}}
{{- with .Values.directory.caKey -}}
- name: directory
  secret:
    secretName: {{ $.Values.directory.existingSecret }}
    defaultMode: 0400
    items:
      - key: {{ . }}
        path: ca.crt
{{- end }}
{{- end }}

{{- define "plainsql.directoryMount" -}}
{{- if .Values.directory.caKey -}}
- name: directory
  mountPath: /etc/plainsql/directory
  readOnly: true
{{- end }}
{{- end }}

{{/* Takes what plainsql.volumes takes. */}}
{{- define "plainsql.mounts" -}}
- name: cells
  mountPath: /etc/plainsql/cells
  readOnly: true
{{- if and .root.Values.tls.existingSecret (ne .plane "operator") }}
- name: tls
  mountPath: /etc/plainsql/tls
  readOnly: true
{{- end }}
{{- with include "plainsql.directoryMount" .root }}
{{ . }}
{{- end }}
- name: tmp
  mountPath: /tmp
{{- end }}

{{/* Liveness never depends on anything outside of the process; readiness does not depend on a cell. */}}
{{- define "plainsql.probes" -}}
{{- $scheme := .Values.tls.existingSecret | empty | ternary "HTTP" "HTTPS" -}}
startupProbe:
  httpGet:
    path: /health/live
    port: http
    scheme: {{ $scheme }}
  periodSeconds: 1
  failureThreshold: 60
livenessProbe:
  httpGet:
    path: /health/live
    port: http
    scheme: {{ $scheme }}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet:
    path: /health/ready
    port: http
    scheme: {{ $scheme }}
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: 2
{{- end }}
