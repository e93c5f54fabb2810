package eddyline.first;

import io.grpc.ChannelCredentials;
import io.grpc.InsecureChannelCredentials;
import io.grpc.Metadata;
import io.grpc.TlsChannelCredentials;
import java.io.File;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Locale;
import java.util.Map;

/**
 * How the client gets in: an access key and TLS, from the variables that the Python client takes. TLS is used where
 * EDDYLINE_TLS_CA names the authority, or with EDDYLINE_TLS=true, which goes by those that Java comes with.
 */
record Access(ChannelCredentials credentials, Metadata headers) {
  private static final Metadata.Key<String> AUTHORIZATION =
      Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER);

  /** Throws what names the variable whose file cannot be read. */
  static Access of(Map<String, String> environment) throws IOException {
    String ca = environment.getOrDefault("EDDYLINE_TLS_CA", "");
    String tls = environment.getOrDefault("EDDYLINE_TLS", "").toLowerCase(Locale.ROOT);
    ChannelCredentials credentials = InsecureChannelCredentials.create();
    if (!ca.isEmpty()) {
      try {
        credentials = TlsChannelCredentials.newBuilder().trustManager(new File(ca)).build();
      } catch (IOException error) {
        throw new IOException("EDDYLINE_TLS_CA cannot be used: " + error.getMessage(), error);
      }
    } else if (List.of("1", "true", "yes", "on").contains(tls)) {
      credentials = TlsChannelCredentials.create();
    }
    String secret = environment.getOrDefault("EDDYLINE_KEY", "");
    String file = environment.getOrDefault("EDDYLINE_KEY_FILE", "");
    if (secret.isEmpty() && !file.isEmpty()) {
      try {
        secret = Files.readString(Path.of(file));
      } catch (IOException error) {
        throw new IOException("EDDYLINE_KEY_FILE cannot be used: " + error, error);
      }
    }
    Metadata headers = new Metadata();
    if (!secret.isEmpty()) {
      headers.put(AUTHORIZATION, "Bearer " + secret.strip());
    }
    return new Access(credentials, headers);
  }
}
