# The launcher for Nix: nix build '.?dir=packaging/nix'. It was parsed by Debian's nix-bin;
# nobody has built it, for nixpkgs is in no registry that this project's tests use.
{
  description = "crun-launcher: a drop-in for torchrun, in C (not the container runtime crun)";

  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-25.05";

  outputs = { self, nixpkgs }:
    let
      systems = [ "x86_64-linux" "aarch64-linux" ];
      forAll = f: nixpkgs.lib.genAttrs systems (system: f nixpkgs.legacyPackages.${system});
    in
    {
      packages = forAll (pkgs: {
        default = pkgs.stdenv.mkDerivation {
          pname = "crun-launcher";
          version = "0.1.0";
          src = ../..;
          nativeBuildInputs = with pkgs; [ meson ninja pkg-config python3 ];
          buildInputs = with pkgs; [ libuv hiredis cjson uthash openssl libmicrohttpd hwloc curl ];
          mesonFlags = [ "-Dtrainer=disabled" "-Dtests=disabled" ];
          doInstallCheck = true;
          installCheckPhase = "$out/bin/crun --version";
          # These are opened on first use, by name.
          postFixup = with pkgs; ''
            for program in crun rendezvousd; do
              patchelf --add-rpath ${lib.makeLibraryPath [ openssl libmicrohttpd hwloc curl ]} $out/bin/$program
            done
          '';
          meta = with pkgs.lib; {
            description = "A drop-in for torchrun, in C";
            license = licenses.asl20;
            platforms = systems;
            mainProgram = "crun-launcher";
          };
        };
      });
    };
}
