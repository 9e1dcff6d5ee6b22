# goreleaser builds the image, with the program of each platform in a folder named after it.
FROM gcr.io/distroless/static-debian12:nonroot
ARG TARGETPLATFORM
COPY $TARGETPLATFORM/outboxctl /usr/bin/outboxctl
ENTRYPOINT ["/usr/bin/outboxctl"]
CMD ["forward"]
