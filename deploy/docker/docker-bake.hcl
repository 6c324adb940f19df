# docker buildx bake -f deploy/docker/docker-bake.hcl --push      (in the root of the repository)
variable "IMAGE" { default = "fedgs" }
variable "TAG" { default = "latest" }

group "default" { targets = ["fedgs"] }

target "fedgs" {
  context    = "."
  dockerfile = "deploy/docker/Dockerfile"
  platforms  = ["linux/amd64", "linux/arm64"]
  tags       = ["${IMAGE}:${TAG}"]
}
