{{/* The deployment of a plane. Takes (dict "root" $ "plane" "data" "port" 8400). */}}
{{- define "plainsql.deployment" -}}
{{- $root := .root -}}
{{- $values := get $root.Values .plane -}}
{{- $labels := dict "root" $root "component" .plane -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ include "plainsql.fullname" $root }}-{{ .plane }}
  labels: {{- include "plainsql.labels" $labels | nindent 4 }}
spec:
  {{- if not (and (eq .plane "data") $values.autoscaling.enabled) }}
  replicas: {{ $values.replicas }}
  {{- end }}
  selector:
    matchLabels: {{- include "plainsql.selector" $labels | nindent 6 }}
  strategy:
    type: RollingUpdate
    rollingUpdate:
      maxSurge: 1
      maxUnavailable: 0
  template:
    metadata:
      annotations:
        checksum/config: {{ include "plainsql.environment" (dict "root" $root "plane" .plane "dsn" .plane) | sha256sum }}
        {{- with $values.podAnnotations }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      labels:
        {{- include "plainsql.labels" $labels | nindent 8 }}
        {{- with $values.podLabels }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    spec:
      serviceAccountName: {{ include "plainsql.serviceAccount" $root }}
      automountServiceAccountToken: false
      enableServiceLinks: false
      terminationGracePeriodSeconds: {{ $values.terminationGracePeriodSeconds }}
      securityContext: {{- include "plainsql.podSecurity" $root | nindent 8 }}
      {{- with $root.Values.image.pullSecrets }}
      imagePullSecrets: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- if and (eq .plane "control") (eq $root.Values.migrations.mode "initContainer") }}
      initContainers:
        - {{- include "plainsql.migrate" $root | nindent 10 }}
      {{- end }}
      containers:
        - name: {{ .plane }}
          image: {{ include "plainsql.image" $root | quote }}
          imagePullPolicy: {{ $root.Values.image.pullPolicy }}
          args: [{{ .plane }}]
          env: {{- include "plainsql.environment" (dict "root" $root "plane" .plane "dsn" .plane) | nindent 12 }}
          ports:
            - name: http
              containerPort: {{ .port }}
            {{- if $root.Values.metrics.enabled }}
            {{- range $worker := until (int ($values.workers | default 1)) }}
            - name: metrics{{ if $worker }}-{{ $worker }}{{ end }}
              containerPort: {{ add 9400 $worker }}
            {{- end }}
            {{- end }}
          {{- include "plainsql.probes" $root | nindent 10 }}
          lifecycle:
            preStop:
              exec:
                command: [sleep, {{ $values.preStopSleepSeconds | quote }}]
          resources: {{- toYaml $values.resources | nindent 12 }}
          securityContext: {{- include "plainsql.containerSecurity" $root | nindent 12 }}
          volumeMounts: {{- include "plainsql.mounts" (dict "root" $root "plane" .plane) | nindent 12 }}
      volumes: {{- include "plainsql.volumes" (dict "root" $root "plane" .plane) | nindent 8 }}
      {{- if $values.topologySpread.enabled }}
      topologySpreadConstraints:
        - maxSkew: 1
          topologyKey: {{ $values.topologySpread.topologyKey }}
          whenUnsatisfiable: ScheduleAnyway
          labelSelector:
            matchLabels: {{- include "plainsql.selector" $labels | nindent 14 }}
      {{- end }}
      {{- with $values.nodeSelector }}
      nodeSelector: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $values.affinity }}
      affinity: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $values.tolerations }}
      tolerations: {{- toYaml . | nindent 8 }}
      {{- end }}
{{- end }}

{{/* The container that updates the directory's tables. Any number of them may run at the same time. */}}
{{- define "plainsql.migrate" -}}
name: migrate
image: {{ include "plainsql.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
args: [migrate]
env:
  - name: PLAINSQL_DIRECTORY_DSN
    valueFrom:
      secretKeyRef:
        name: {{ .Values.directory.existingSecret }}
        key: {{ .Values.directory.keys.migrate }}
resources: {{- toYaml .Values.control.resources | nindent 2 }}
securityContext: {{- include "plainsql.containerSecurity" . | nindent 2 }}
{{- with include "plainsql.directoryMount" . }}
volumeMounts: {{- . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "plainsql.service" -}}
{{- $values := get .root.Values .plane -}}
{{- $labels := dict "root" .root "component" .plane -}}
apiVersion: v1
kind: Service
metadata:
  name: {{ include "plainsql.fullname" .root }}-{{ .plane }}
  labels: {{- include "plainsql.labels" $labels | nindent 4 }}
  {{- with $values.service.annotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  type: {{ $values.service.type }}
  selector: {{- include "plainsql.selector" $labels | nindent 4 }}
  ports:
    - name: http
      port: {{ include "plainsql.servicePort" . }}
      targetPort: http
      appProtocol: {{ .root.Values.tls.existingSecret | empty | ternary "http" "https" }}
{{- end }}

{{- define "plainsql.disruption" -}}
{{- $labels := dict "root" .root "component" .plane -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "plainsql.fullname" .root }}-{{ .plane }}
  labels: {{- include "plainsql.labels" $labels | nindent 4 }}
spec:
  maxUnavailable: {{ (get .root.Values .plane).podDisruptionBudget.maxUnavailable }}
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels: {{- include "plainsql.selector" $labels | nindent 6 }}
{{- end }}
